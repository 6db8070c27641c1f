#pragma once

#include <vector>

#include "contract/step.h"

namespace protean {

// Tokens of one sequence in a step, after `context` earlier ones.
struct SliceShape {
  int context = 0;
  int tokens = 1;
};

// The sizes of a step. If `sampled`, each sequence draws a token greedily.
struct StepShape {
  std::vector<SliceShape> slices;
  bool sampled = true;

  int tokens() const;
  int longest() const;  // the longest sequence after the step
  int blocks(int block_tokens) const;
};

StepShape prefill_shape(int tokens, int context = 0);
StepShape decode_shape(int sequences, int context);
StepShape inner_chunk(int tokens, int context = 0);  // an inner chunk of a prompt draws no token
StepShape inner_chunks(int sequences, int tokens);   // the same of several prompts

// Returns a plan of this shape with random tokens. Each sequence has blocks of its own, from 0 on.
// `seed` changes the tokens.
StepPlan plan_of(const StepShape& shape, int vocab, int block_tokens, unsigned seed = 1);

}  // namespace protean
