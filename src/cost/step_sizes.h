#pragma once

#include <vector>

#include "contract/step.h"

namespace protean {

// Tokens of one sequence in a step, after `context` earlier ones.
struct SliceSizes {
  int context = 0;
  int tokens = 1;
};

// The sizes of a step. If `sampled`, each sequence draws a token greedily.
struct StepSizes {
  std::vector<SliceSizes> slices;
  bool sampled = true;

  int tokens() const;
  int longest() const;  // the longest sequence after the step
  int blocks(int block_tokens) const;
};

StepSizes prefill_sizes(int tokens, int context = 0);
StepSizes decode_sizes(int sequences, int context);
StepSizes inner_chunk(int tokens, int context = 0);  // an inner chunk of a prompt draws no token
StepSizes inner_chunks(int sequences, int tokens);   // the same of several prompts

// Returns a plan of these sizes with random tokens. Each sequence has blocks of its own, from 0 on.
// `seed` changes the tokens.
StepPlan plan_of(const StepSizes& sizes, int vocab, int block_tokens, unsigned seed = 1);

}  // namespace protean
