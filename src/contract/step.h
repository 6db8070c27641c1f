#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "contract/request.h"

namespace protean {

// A token to draw. The draw depends only on the seed, the position and the sequence so far: batch,
// chunking and preemption cannot change it.
struct SampleSpec {
  SamplingParams params;
  int position = 0;  // the place of the drawn token in its sequence
  // The sequence so far, if params, rules or constraint need it: a range of StepPlan::history.
  int history_begin = 0;
  int history_count = 0;
  int prompt_count = 0;  // the first tokens of the range, which are the prompt
  std::shared_ptr<const TokenRules> rules;
  std::shared_ptr<TokenConstraint> constraint;
  std::vector<TokenId> banned;  // stop ids, while the answer is shorter than min_tokens
  int top_logprobs = -1;        // -1: no logprobs
};

// Asks for the likelihood of a known token: the one that follows plan.tokens[after].
struct ScoreSpec {
  int after = 0;
  TokenId token = 0;
  int top_logprobs = 0;
  bool whole_row = false;
};

// Consecutive tokens of one sequence. Ranges index the flat arrays of the StepPlan.
struct SequenceSlice {
  RequestId request;
  int first_position = 0;  // the place of tokens[token_begin] in the sequence
  int token_begin = 0;
  int token_count = 0;
  int block_begin = 0;  // the sequence's block table, up to its last token in this step
  int block_count = 0;
  int sample = -1;  // index into StepPlan::samples, -1 for a prompt's inner chunk
  int score_begin = 0;
  int score_count = 0;  // a range of StepPlan::scores, in order of position
  Pooling pooling = Pooling::kNone;
};

// Values of pooled rows are rounded to multiples of it: fine enough for an f32 near 1, and sums of
// many such values are exact in a double in any order.
inline constexpr double kPooledQuantum = 0x1p-24;

// One forward pass over a batch: integers without pointers, text or form. The executor maps blocks
// to memory. Steps of a replica execute in the order of their ids.
struct StepPlan {
  StepId id;
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  std::vector<SequenceSlice> slices;
  std::vector<SampleSpec> samples;
  std::vector<ScoreSpec> scores;
  std::vector<TokenId> history;
};

// Why one request of a step cannot go on, though the others can.
struct RequestFailure {
  RequestId request;
  std::string why;
};

// What a step computed, in the order of its plan.
struct StepResult {
  StepId id;
  std::vector<TokenId> sampled;  // one per StepPlan::samples, in order; empty on failure
  // One per sample in order, up to the last sample that wants logprobs; empty if none does.
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> scored;  // one per StepPlan::scores, in order
  // One per slice with pooling, in order, each [hidden]. kLast: the slice's last row. kMean: the
  // sum of its rows, each value first rounded to a multiple of kPooledQuantum. Sums of such values
  // are exact, so they do not depend on how a prompt was cut into chunks.
  std::vector<std::vector<double>> pooled;
  std::vector<RequestFailure> failed;  // their samples, scores and pooled rows mean nothing
  std::optional<Error> failure;        // none of the step's requests can go on
};

}  // namespace protean
