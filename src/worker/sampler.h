#pragma once

#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/step.h"
#include "device/cpu/team.h"
#include "worker/candidates.h"
#include "worker/logit_editor.h"

namespace protean {

// Rows to draw from: logits [specs.size()][vocab], and the history that the specs index.
struct SampleRows {
  std::span<const float> logits;
  std::span<const SampleSpec> specs;
  std::span<const TokenId> history;
};

// What a draw writes down, kept for its memory.
struct DrawRoom {
  std::vector<Candidate> candidates;
  std::vector<double> block_sums;
};

// Draws tokens from logits: edited by penalties, rules and constraint (LogitEditor), then filtered
// in the order temperature, top_k, top_p, min_p; among equal logits the lower id comes first. A
// draw is a function of the row's logits, its spec and its history alone: neither the batch nor the
// thread count can change it. Logits that are not a number are never drawn, unless a row has
// nothing else: then it is token 0, or LogitEditor's last resort. One caller at a time.
class Sampler {
 public:
  Sampler(int vocab, int threads);

  // tokens[i] from row i, and logprobs[i] of its raw logits where spec i wants them; `logprobs` may
  // be empty where none does. Rows are drawn in parallel.
  void sample(cpu::Team& team, const SampleRows& rows, std::span<TokenId> tokens,
              std::span<TokenLogprobs> logprobs);

  // scored[i] from row i of logits [specs.size()][vocab].
  void score(cpu::Team& team, std::span<const float> logits, std::span<const ScoreSpec> specs,
             std::span<TokenLogprobs> scored);

 private:
  // One thread's, filled on first use.
  struct Room {
    DrawRoom draw;
    LogitEditor editor;
  };

  static TokenId draw_edited(std::span<const float> logits, const SampleSpec& spec,
                             std::span<const TokenId> history, Room& room);

  int vocab_;
  std::vector<Room> rooms_;
};

}  // namespace protean
