#include "server/recent_lengths.h"

#include <algorithm>
#include <cmath>

namespace protean {

void RecentLengths::add(int tokens) {
  if (lengths_.size() < kMost) {
    lengths_.push_back(tokens);
    return;
  }
  lengths_[oldest_] = tokens;
  oldest_ = (oldest_ + 1) % kMost;
}

std::optional<int> RecentLengths::quantile(double share) const {
  if (lengths_.size() < kLeast) {
    return std::nullopt;
  }
  std::vector<int> ordered = lengths_;
  const auto rank =
      static_cast<std::ptrdiff_t>(std::ceil(share * static_cast<double>(ordered.size())));
  const auto at = ordered.begin() + std::clamp<std::ptrdiff_t>(rank, 1, std::ssize(ordered)) - 1;
  std::nth_element(ordered.begin(), at, ordered.end());
  return *at;
}

}  // namespace protean
