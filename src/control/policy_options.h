#pragma once

#include <array>

#include "base/units.h"
#include "contract/morph.h"
#include "contract/precision.h"
#include "control/form_path.h"
#include "control/policy_constants.h"

namespace protean {

enum class MorphRule {
  kPredict,  // takes the form with the least predicted cost
  kQueued,   // the same, as if no more requests arrived
  kPaper,    // thresholds and short persistence, both ways (MorphServe sections 4.1 and 6)
};

// The KL divergence from bf16 in nats for each token, if all layers, or the embedding matrix and LM
// head, are at a precision. Losses of halves of layers add up, in proportion to their weights.
struct QualityLoss {
  std::array<double, kPrecisions.size()> layers{};
  std::array<double, kPrecisions.size()> embeddings{};
};

// Returns what the built-in model loses (docs/measured.md).
QualityLoss typical_loss();

// Returns what a token loses in `form` and not in the form of quiet times.
double kl_nats(const QualityLoss& loss, const FormBounds& bounds, const Form& form);

struct PolicyOptions {
  MorphRule rule = MorphRule::kPredict;
  double late_per_nat = kLatePerNat;  // the price of quality
  QualityLoss loss = typical_loss();
  TimeNs ttft_ns = 2 * kNsPerS;  // targets
  TimeNs tpot_ns = 0;            // 0: none
};

// Returns the policy of a mode: its price of quality.
PolicyOptions options_for(MorphMode mode);

}  // namespace protean
