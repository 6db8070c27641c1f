#pragma once

#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/step.h"

namespace protean {

// Kernels read keys and values in tiles of this many positions (device/cpu/attention.h).
inline constexpr int kKvTileTokens = 64;

// The work of a step, counted from its plan, or predicted. Counts of positions are means over
// layers, because some layers may see only a window.
struct StepWork {
  double tokens = 0;
  double sequences = 0;
  double logit_rows = 0;
  double context_tokens = 0;  // positions that rows attend to, summed over rows
  // Positions whose keys and values are read, once for each sequence, in whole tiles.
  double kv_tokens = 0;
  double kv_least_tokens = 0;  // the same without the tiles' other positions
};

// Returns the work of a step of a model without windows.
StepWork work_of(const StepPlan& plan);
StepWork work_of(const StepPlan& plan, const ModelSpec& spec);

// Returns the share of layers that see only a window.
double windowed_share(const ModelSpec& spec);

// The least that any machine must read and compute for a step.
struct StepDemand {
  double weight_bytes = 0;  // layers and LM head once, the tokens' rows of the embedding matrix
  double kv_bytes = 0;
  double operations = 0;  // a multiply-add counts two

  double bytes() const { return weight_bytes + kv_bytes; }
};

StepDemand demand_of(const StepWork& work, const ModelSpec& spec, const Form& form);

}  // namespace protean
