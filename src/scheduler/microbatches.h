#pragma once

#include <cstdint>
#include <span>
#include <vector>

// How KunServe's released code divides work among the microbatches of a pipeline. It counts tokens
// and does not predict times, unlike the lookahead of the paper.

namespace protean {

// Which prompts are cut into chunks, and how.
struct PromptCut {
  int longest_whole = 1;  // tokens; a step takes prompts up to this length whole
  int chunk = 1;          // tokens that a step takes of a longer prompt at most
};

// Returns how to cut prompts of these lengths for steps of `budget` tokens that have so many
// sequences on average. A prompt is cut if it is longer than a share of the budget: two divided by
// the sequences, but at least `floor` tokens and at most half of the budget. Its chunks are as long
// as the mean of the other prompts; if there are none, a chunk may fill the step.
PromptCut prompt_cut(std::span<const int> prompts, double sequences, int budget, int floor);

// Deals pieces of work to steps, the longest first, each to the step with the least tokens. `loads`
// are the tokens that the steps have already; among equal ones the first is preferred. Returns for
// each piece the index of its step.
std::vector<std::size_t> deal_longest_first(std::span<const int> tokens,
                                            std::vector<std::int64_t> loads);

}  // namespace protean
