#include "contract/home_blocks.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace protean {

HomeBlocks::HomeBlocks(int homes, std::int64_t each)
    : HomeBlocks(std::vector<std::int64_t>(static_cast<std::size_t>(homes), each)) {}

HomeBlocks::HomeBlocks(std::vector<std::int64_t> each)
    : each_(std::move(each)),
      total_(std::accumulate(each_.begin(), each_.end(), std::int64_t{0})),
      equal_(std::adjacent_find(each_.begin(), each_.end(), std::not_equal_to<>()) ==
             each_.end()) {}

std::int64_t HomeBlocks::least() const {
  return *std::min_element(each_.begin(), each_.end());
}

// Returns the number of blocks before the one with which this turn begins.
std::int64_t HomeBlocks::begin_of_turn(std::int64_t turn) const {
  std::int64_t before = 0;
  for (const std::int64_t blocks : each_) {
    before += std::min(blocks, turn);
  }
  return before;
}

BlockId HomeBlocks::number(int home, BlockId block) const {
  if (equal_) {
    return static_cast<BlockId>(block * count() + home);
  }
  std::int64_t number = begin_of_turn(block);
  for (int before = 0; before < home; ++before) {
    number += of(before) > block ? 1 : 0;
  }
  return static_cast<BlockId>(number);
}

HomeBlocks::Block HomeBlocks::block(BlockId number) const {
  if (equal_) {
    return {static_cast<int>(number % count()), static_cast<BlockId>(number / count())};
  }
  std::int64_t turn = 0;
  std::int64_t beyond = *std::max_element(each_.begin(), each_.end());
  while (turn + 1 < beyond) {
    const std::int64_t middle = turn + (beyond - turn) / 2;
    (begin_of_turn(middle) <= number ? turn : beyond) = middle;
  }
  std::int64_t left = number - begin_of_turn(turn);
  int home = 0;
  while (of(home) <= turn || left > 0) {
    left -= of(home) > turn ? 1 : 0;
    ++home;
  }
  return {home, static_cast<BlockId>(turn)};
}

}  // namespace protean
