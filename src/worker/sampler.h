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

// Buffers of a draw, kept so that their memory is reused.
struct DrawRoom {
  std::vector<Candidate> candidates;
  std::vector<double> block_sums;
};

// Draws tokens from logits. Penalties, rules and constraint edit the logits first (LogitEditor);
// then temperature, top_k, top_p and min_p apply in this order. Among equal logits, the lower id
// comes first. A draw depends on the row's logits, spec and history alone, not on the batch or the
// number of threads. NaN is never drawn; a row of NaN alone gives token 0 or LogitEditor's last
// resort. One caller at a time.
class Sampler {
 public:
  Sampler(int vocab, int threads);

  // Draws tokens[i] from row i, and sets logprobs[i] from the raw logits if spec i wants them.
  // `logprobs` may be empty if no spec does. Rows are drawn in parallel.
  void sample(cpu::Team& team, const SampleRows& rows, std::span<TokenId> tokens,
              std::span<TokenLogprobs> logprobs);

  // Sets scored[i] from row i of logits [specs.size()][vocab].
  void score(cpu::Team& team, std::span<const float> logits, std::span<const ScoreSpec> specs,
             std::span<TokenLogprobs> scored);

 private:
  // Buffers of one thread, filled on first use.
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
