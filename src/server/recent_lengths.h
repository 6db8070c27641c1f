#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace protean {

// The lengths of a model's latest 1,024 answers and of their prompts, in tokens.
class RecentLengths {
 public:
  // Quantiles of fewer answers would be chance.
  static constexpr std::size_t kLeast = 20;
  static constexpr std::size_t kMost = 1024;

  void add(int prompt, int answer);
  // Returns the length that at least this share of the answers does not exceed, above 0 and up to
  // 1; nothing before there are kLeast answers.
  std::optional<int> quantile(double share) const;

  struct Lengths {
    int prompt = 0;
    int answer = 0;
  };
  // The mean lengths, at least 1 each; nothing without answers.
  std::optional<Lengths> means() const;

 private:
  std::vector<Lengths> lengths_;
  std::size_t oldest_ = 0;  // once there are kMost
};

}  // namespace protean
