#pragma once

#include <array>
#include <cstddef>

namespace protean {

// The distribution of answer lengths in tokens, learned from answers that ended, recent ones
// counting most. A prediction also counts one imagined answer that is twice as long as the sequence
// is by now (at least kFirstAnswerTokens), so that little experience and answers longer than any
// before have a prediction too. O(1) time but for done(); constant memory.
class AnswerLengths {
 public:
  void done(int prompt_tokens, int answer_tokens);

  // Returns the expected number of tokens that an answer still gets after `drawn` tokens, if it may
  // have at most `most`.
  double expected_left(int drawn, int most) const;

  // Returns how many answers it has seen, older ones counting less.
  double seen() const { return weight_[0]; }
  // Returns the expected length of a new answer.
  double mean() const { return expected_left(0, kMostTokens); }

  // What a running sequence has in the mean over steps. Long answers run for longest, so they and
  // their prompts count most.
  double running_prompt_tokens(double mean_prompt) const;
  double running_drawn_tokens() const;

 private:
  static constexpr int kMostTokens = 1 << 20;
  static constexpr int kPerOctave = 4;
  static constexpr std::size_t kBins = 20 * kPerOctave;

  static std::size_t bin_of(int tokens);

  // An element counts the answers of its bin and of all longer ones.
  std::array<double, kBins + 1> weight_{};
  std::array<double, kBins + 1> tokens_{};
  double prompt_tokens_ = 0;  // sum of prompt times answer
  double squares_ = 0;        // sum of squares of answer lengths
};

}  // namespace protean
