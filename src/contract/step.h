#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "contract/request.h"

namespace protean {

// One token to draw. The draw depends on seed and position only, so batch, chunking and preemption
// cannot change it.
struct SampleSpec {
  SamplingParams params;
  int position = 0;  // of the drawn token in its sequence
};

// Consecutive tokens of one sequence. Ranges index the flat arrays of the StepPlan.
struct SequenceSlice {
  RequestId request;
  int first_position = 0;  // of tokens[token_begin] in the sequence
  int token_begin = 0;
  int token_count = 0;
  int block_begin = 0;  // the sequence's block table up to its last token in this step
  int block_count = 0;
  int sample = -1;  // index into StepPlan::samples, -1 for a prompt's inner chunk
};

// One forward pass over a batch, as integers: no pointers, no text, no form. Whoever executes it
// maps blocks to memory. Steps of a replica execute in the order of their ids.
struct StepPlan {
  StepId id;
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  std::vector<SequenceSlice> slices;
  std::vector<SampleSpec> samples;
};

struct StepResult {
  StepId id;
  std::vector<TokenId> sampled;  // one per StepPlan::samples, in order; empty on failure
  std::optional<Error> failure;  // the step's requests cannot go on
};

}  // namespace protean
