#pragma once

#include <array>
#include <vector>

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

// The KL divergence from bf16 in nats for each token. Losses of halves of layers add up.
struct QualityLoss {
  // If all layers, or the embedding matrix and LM head, are at a precision. Halves of layers have
  // this in proportion to their weights if they were not measured.
  std::array<double, kPrecisions.size()> layers{};
  std::array<double, kPrecisions.size()> embeddings{};
  // By precision and layer; empty if that was not measured.
  std::array<std::vector<LayerLoss>, kPrecisions.size()> measured{};
};

// Returns what the built-in model loses, which stands for models without a profile
// (docs/policy.md).
QualityLoss typical_loss();

// Sets what halves of layers lose at a precision, where `of` is this precision, or the one with the
// same weights and activations that are not rounded. What rounding them loses in addition is
// typical.
void set_measured(Precision precision, Precision of, const std::vector<LayerLoss>& losses,
                  const ModelSpec& spec, QualityLoss& loss);

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
