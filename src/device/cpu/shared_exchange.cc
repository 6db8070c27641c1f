#include "device/cpu/shared_exchange.h"

#include <algorithm>

#include "base/check.h"

namespace protean::cpu {
namespace {

// Each stop, the last one once for each tile of logits, has points in this order.
enum Phase : std::uint32_t {
  kTaken,
  kSquaresShown,
  kSquaresReleased,
  kShown,
  kReleased,
  kHandedOver,
  kPhases
};

}  // namespace

const std::vector<Member>& GroupMembers::of(SharedRows which, int turn) const {
  switch (which) {
    case SharedRows::kEmbedding:
      return embedding;
    case SharedRows::kHeadSquares:
    case SharedRows::kAttention:
      return attention[static_cast<std::size_t>(turn)];
    case SharedRows::kMlp:
      return mlp[static_cast<std::size_t>(turn)];
    case SharedRows::kLogits:
      return logits;
  }
  check(false, "shared rows are of a known kind");
  return embedding;
}

SharedExchange::SharedExchange(ExchangeBoard& board, int device, const GroupMembers& members,
                               int layers)
    : board_(board), device_(device), members_(members), layers_(layers) {}

Moment SharedExchange::moment(SharedRows which, int turn, std::uint32_t phase) const {
  int place = 0;
  switch (which) {
    case SharedRows::kEmbedding:
      place = 0;
      break;
    case SharedRows::kHeadSquares:
      place = 1 + 2 * turn;
      phase = phase == kShown ? kSquaresShown : kSquaresReleased;
      break;
    case SharedRows::kAttention:
      place = 1 + 2 * turn;
      break;
    case SharedRows::kMlp:
      place = 2 + 2 * turn;
      break;
    case SharedRows::kLogits:
      place = 1 + 2 * layers_ + turn;
      break;
  }
  return {step_, static_cast<std::uint32_t>(place) * kPhases + phase};
}

Moment SharedExchange::taken(int stop) const {
  return {step_, static_cast<std::uint32_t>(stop) * kPhases + kTaken};
}

Moment SharedExchange::handed_over(int stop) const {
  return {step_, static_cast<std::uint32_t>(stop) * kPhases + kHandedOver};
}

Moment SharedExchange::attended(std::uint64_t step, int layer) {
  return {step, static_cast<std::uint32_t>(1 + 2 * layer) * kPhases + kHandedOver};
}

bool SharedExchange::broken() const {
  return std::any_of(group_.begin(), group_.end(),
                     [this](int device) { return board_.progress_.failed(device); });
}

void SharedExchange::reuse(SharedRows which) {
  const Last& last = last_[static_cast<std::size_t>(which)];
  if (last.members == nullptr) {
    return;
  }
  for (const Member& member : *last.members) {
    if (member.device != device_ && member.collects) {
      board_.progress_.wait(device_, member.device, last.released);
    }
  }
}

void SharedExchange::show(SharedRows which, int turn, std::span<const float> mine) {
  const auto kind = static_cast<std::size_t>(which);
  last_[kind] = {&members_.of(which, turn), moment(which, turn, kReleased)};
  board_.shown_[static_cast<std::size_t>(device_)][kind] = mine;
  board_.progress_.reach(device_, moment(which, turn, kShown));
}

std::span<const ShownRows> SharedExchange::collect(SharedRows which, int turn) {
  collected_.clear();
  for (const Member& member : members_.of(which, turn)) {
    if (member.device != device_) {
      board_.progress_.wait(device_, member.device, moment(which, turn, kShown));
    }
    // If the group is broken, others may have shown nothing, and what is computed is of no use.
    const int shows = broken() ? device_ : member.device;
    collected_.push_back(
        {member.first_shard, member.shards,
         board_.shown_[static_cast<std::size_t>(shows)][static_cast<std::size_t>(which)]});
  }
  return collected_;
}

void SharedExchange::release(SharedRows which, int turn) {
  board_.progress_.reach(device_, moment(which, turn, kReleased));
}

}  // namespace protean::cpu
