#include "fleet/copied_blocks.h"

#include <algorithm>

#include "base/check.h"

namespace protean {

CopiedBlocks::CopiedBlocks(std::int64_t from, std::int64_t to) : copies_(at(from)) {
  for (auto place = static_cast<BlockId>(to); place-- > 0;) {
    free_.push_back(place);
  }
}

std::vector<HeldBlock> CopiedBlocks::lacking(std::span<const HeldBlock> held) {
  const auto room = static_cast<std::size_t>(std::ssize(free_) + copied_);
  const auto first = held.first(std::min(held.size(), room));
  std::vector<bool> valid(copies_.size(), false);
  std::vector<HeldBlock> lacking;
  for (const HeldBlock& block : first) {
    const Copy& copy = copies_[at(block.block)];
    valid[at(block.block)] = copy.place >= 0 && copy.content == block.content;
    if (!valid[at(block.block)]) {
      lacking.push_back(block);
    }
  }
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].place >= 0 && !valid[i]) {
      free_.push_back(copies_[i].place);
      copies_[i] = {};
      --copied_;
    }
  }
  return lacking;
}

BlockId CopiedBlocks::place_for(const HeldBlock& held) {
  Copy& copy = copies_[at(held.block)];
  check(copy.place < 0 && !free_.empty(), "only what has room is copied, and once");
  copy = {.place = free_.back(), .content = held.content};
  free_.pop_back();
  ++copied_;
  return copy.place;
}

std::vector<BlockId> CopiedBlocks::places() const {
  std::vector<BlockId> places;
  places.reserve(copies_.size());
  for (const Copy& copy : copies_) {
    places.push_back(copy.place);
  }
  return places;
}

}  // namespace protean
