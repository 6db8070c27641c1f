#include "fleet/live_migration.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

// Blocks of one copy, which the other engine's next step waits for, and the most that the paused
// request waits for. Llumnix limits its last stage to the same number.
constexpr std::size_t kBlocksAtOnce = 16;

}  // namespace

std::optional<Scheduler::Decoding> LiveMigration::still_decoding() const {
  const auto now = from_.decoding(request_);
  return now && now->preemptions == preemptions_ && to_.could_run(*now) ? now : std::nullopt;
}

std::optional<std::vector<BlockMove>> LiveMigration::begin(TimeNs now_ns) {
  const auto now = from_.decoding(request_);
  if (!now || !to_.keep_place(*now)) {
    stage_ = Stage::kCalledOff;
    return std::nullopt;
  }
  preemptions_ = now->preemptions;
  return next(now_ns);
}

std::optional<std::vector<BlockMove>> LiveMigration::copied(TimeNs now_ns) {
  return_loan(now_ns);
  if (stage_ == Stage::kLastCopy && still_decoding()) {
    hand_over(now_ns);
    return std::nullopt;
  }
  return next(now_ns);
}

std::optional<std::vector<BlockMove>> LiveMigration::source_advanced(TimeNs now_ns) {
  return stage_ == Stage::kPausing ? next(now_ns) : std::nullopt;
}

// Copies full blocks as long as many are left, then pauses the request and copies the rest.
std::optional<std::vector<BlockMove>> LiveMigration::next(TimeNs now_ns) {
  const auto now = still_decoding();
  if (!now) {
    call_off(now_ns);
    return std::nullopt;
  }
  const auto tokens = static_cast<std::size_t>(from_.block_tokens());
  const auto computed = static_cast<std::size_t>(now->computed);
  const std::size_t full = computed / tokens;
  const std::size_t few = received_.empty() && to_.computes_for_long() ? 0 : kBlocksAtOnce;
  if (stage_ == Stage::kCopying && full - received_.size() > few) {
    return copy_until(std::min(full, received_.size() + kBlocksAtOnce), now_ns);
  }
  from_.pause(request_);
  if (now->in_step) {
    stage_ = Stage::kPausing;
    return std::nullopt;
  }
  stage_ = Stage::kLastCopy;
  return copy_until((computed + tokens - 1) / tokens, now_ns);
}

std::optional<std::vector<BlockMove>> LiveMigration::copy_until(std::size_t end, TimeNs now_ns) {
  const std::size_t begin = received_.size();
  const auto to = to_.receive(static_cast<std::int64_t>(end - begin));
  if (!to) {
    call_off(now_ns);
    return std::nullopt;
  }
  lent_ = from_.lend(request_, begin, end - begin);
  received_.insert(received_.end(), to->begin(), to->end());
  std::vector<BlockMove> moves;
  for (std::size_t i = 0; i < lent_.size(); ++i) {
    moves.push_back({.from = lent_[i], .to = (*to)[i]});
  }
  return moves;
}

void LiveMigration::return_loan(TimeNs now_ns) {
  from_.give_back(std::exchange(lent_, {}), now_ns);
}

void LiveMigration::call_off(TimeNs now_ns) {
  stage_ = Stage::kCalledOff;
  from_.resume(request_, now_ns);
  to_.drop(std::exchange(received_, {}), now_ns);
}

void LiveMigration::forget(TimeNs now_ns) {
  return_loan(now_ns);
  call_off(now_ns);
}

void LiveMigration::hand_over(TimeNs now_ns) {
  stage_ = Stage::kAdopted;
  to_.adopt(from_.release(request_, now_ns), std::exchange(received_, {}), now_ns);
}

}  // namespace protean
