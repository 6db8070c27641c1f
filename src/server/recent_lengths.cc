#include "server/recent_lengths.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

namespace protean {

void RecentLengths::add(int prompt, int answer) {
  if (lengths_.size() < kMost) {
    lengths_.push_back({prompt, answer});
    return;
  }
  lengths_[oldest_] = {prompt, answer};
  oldest_ = (oldest_ + 1) % kMost;
}

std::optional<int> RecentLengths::quantile(double share) const {
  if (lengths_.size() < kLeast) {
    return std::nullopt;
  }
  std::vector<int> ordered;
  std::ranges::transform(lengths_, std::back_inserter(ordered), &Lengths::answer);
  const auto rank =
      static_cast<std::ptrdiff_t>(std::ceil(share * static_cast<double>(ordered.size())));
  const auto at = ordered.begin() + std::clamp<std::ptrdiff_t>(rank, 1, std::ssize(ordered)) - 1;
  std::nth_element(ordered.begin(), at, ordered.end());
  return *at;
}

std::optional<RecentLengths::Lengths> RecentLengths::means() const {
  if (lengths_.empty()) {
    return std::nullopt;
  }
  std::int64_t prompts = 0;
  std::int64_t answers = 0;
  for (const Lengths& one : lengths_) {
    prompts += one.prompt;
    answers += one.answer;
  }
  const std::int64_t count = std::ssize(lengths_);
  return Lengths{.prompt = static_cast<int>(std::max<std::int64_t>(1, prompts / count)),
                 .answer = static_cast<int>(std::max<std::int64_t>(1, answers / count))};
}

}  // namespace protean
