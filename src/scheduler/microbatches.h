#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// The heuristics by which KunServe's released code divides work among the microbatches of a
// pipeline: prompts go, the longest first, to the step with the fewest tokens, and a step cuts at
// most one prompt, into chunks as long as the mean of the others. They count tokens and predict no
// times, unlike the lookahead of the paper.
//
// Unlike there, work is dealt anew for each step, decodes by their number, and the first prompt
// always to the next step, so that none waits for ever. The share that a whole prompt may have is
// not adjusted to measured times, and its floor comes from the cost model.

namespace protean {

// Returns the length up to which prompts are not cut: two divided by the sequences that a step has
// on average, as a share of the step's `budget` of tokens. It is at least `floor` and at most half
// of the budget.
int longest_whole(double sequences, int budget, int floor);

// Deals pieces of work to steps, the longest first, each to the step with the least tokens. `loads`
// are the tokens that the steps have already; among equal ones the first is preferred. Returns for
// each piece the index of its step.
std::vector<std::size_t> deal_longest_first(std::span<const int> tokens,
                                            std::vector<std::int64_t> loads);

// What the next step takes of prompts.
struct PromptDeal {
  int chunk = 1;            // tokens that it takes of a prompt that is cut, at most
  std::vector<bool> takes;  // one of each whole prompt
};

// Deals whole prompts, whose lengths are given in their order; the next step takes the first. If it
// `cuts` another prompt, it takes a chunk as long as the mean of the whole ones, or if there are
// none, as the rest of its `budget`. `loads` are the tokens of prompts that the steps have already,
// the next step first.
PromptDeal deal_prompts(std::span<const int> whole, bool cuts, int budget,
                        std::vector<std::int64_t> loads);

}  // namespace protean
