#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/step.h"
#include "cost/step_work.h"

namespace protean {

// The share of the layers' weights at each precision, by index_of(). Shares add up to 1, or are all
// 0 if layers do not count.
using LayerShares = std::array<double, kPrecisions.size()>;

LayerShares layer_shares(const ModelSpec& spec, const Form& form);

// What the time of a step depends on in addition to its work.
struct StepPrecision {
  LayerShares layers{};
  Precision embeddings = Precision::kBf16;  // the LM head's precision
  // A share of the layers sees so many positions at most. Only predicted work needs it: work that
  // is counted from a plan has it already.
  double window_tokens = 0;
  double windowed_share = 0;
};

StepPrecision step_precision(const ModelSpec& spec, const Form& form);

// The time of a message or a sum: a part that does not depend on its bytes, and a rate.
struct Transfer {
  double us = 0;
  double bytes_per_us = 0;  // 0: bytes take no time

  double time_us(double bytes) const { return us + (bytes_per_us > 0 ? bytes / bytes_per_us : 0); }
};

// The cost of all layers in a step, if all were at one precision: a line over the step's tokens
// with a bend, because reading the weights hides the first tokens, and a stair, because kernels
// multiply rows in tiles and an incomplete tile takes as long as a full one. The weights are read
// once for each pass over the rows.
struct LayersCost {
  double step_us = 0;        // for each pass
  double token_us = 0;       // for each token up to the bend
  double more_token_us = 0;  // for each token beyond it
  double tile_us = 0;        // for each tile begun
  double bend_tokens = 16;
  double tile_tokens = 12;
  double pass_tokens = 0;  // tokens of a pass; 0: a step is one pass
  // Two devices that share the layers take half of the above, and this for each of the two sums of
  // a layer and all that is not divided, as measured where the two devices were then. Nothing: not
  // measured.
  std::optional<Transfer> sums = {};

  bool is_known() const { return step_us + token_us + more_token_us + tile_us > 0; }
};

// The cost of the LM head at one precision.
struct LogitsCost {
  double step_us = 0;  // for a step with any logits: the LM head is read once
  double row_us = 0;   // for each row of logits
  // In place of step_us if two devices share the LM head, as measured. Nothing: not measured.
  std::optional<double> shared_us = {};

  bool is_known() const { return step_us + row_us > 0; }
};

// Predicts the time of a step of one model on one machine by equations 1 to 3 of KunServe section
// 4.2: gamma is fixed_us plus the layers' step_us (once a step, as in equation 3), beta the layers'
// time per token at each precision, alpha context_token_us. Decoding adds terms for reading keys
// and values once per sequence and for rows of logits. No coefficient is negative, so more work
// never takes less time.
struct StepCost {
  double fixed_us = 0;
  double token_us = 0;
  double context_token_us = 0;
  double sequence_us = 0;
  double kv_token_us = 0;
  double far_kv_token_us = 0;    // in addition, for each token of KV beyond near_kv_tokens
  double near_kv_tokens = 0;     // tokens of KV that caches hold from one step to the next
  double wake_us = 0;            // a step on devices that were idle for long takes longer by it
  double copy_bytes_per_us = 0;  // speed of one thread that reads weights for a morph; 0: not known
  std::array<LayersCost, kPrecisions.size()> layers{};
  std::array<LogitsCost, kPrecisions.size()> logits{};

  bool is_known() const;

  LayersCost& of(Precision precision) { return layers.at(index_of(precision)); }
  const LayersCost& of(Precision precision) const { return layers.at(index_of(precision)); }
  LogitsCost& logits_at(Precision precision) { return logits.at(index_of(precision)); }
  const LogitsCost& logits_at(Precision precision) const { return logits.at(index_of(precision)); }
};

// Returns the cost of a machine of usual proportions, for a model of which nothing was measured:
// reading takes 1 us for 20 kB, and a multiply-add 1 us for 100,000. Only ratios of its predictions
// mean anything until a StepCorrection has seen some hundred steps.
StepCost nominal_step_cost(const ModelSpec& spec);

// Returns the cost of steps that take `factor` times as long.
StepCost scaled(const StepCost& cost, double factor);

// Returns the time of all layers at one precision for so many tokens.
double layers_us(const LayersCost& of, double tokens);

// Returns the time of a step on devices that are not idle before it. Layers without a share cost
// nothing.
double predict_us(const StepCost& cost, const StepWork& work, const StepPrecision& precision = {});

// Returns the tokens of a prompt that a step needs so that each takes at most a quarter longer than
// in a long step: a power of two.
int efficient_tokens(const StepCost& cost, const StepPrecision& precision);

// A part of a model that some devices compute: shares of the layers' weights and of their
// attention, the beginning of the step, and the LM head.
struct DeviceWork {
  double weights = 1;
  double attention = 1;
  bool begins = true;
  bool logits = true;
};

// Predicts the time of a part of the model, which takes its share of the whole model's time.
double predict_us(const StepCost& cost, const StepWork& work, const StepPrecision& precision,
                  const DeviceWork& part);
// Predicts the time of a step of the whole model on the devices of which `cost` tells.
double predict_us(const StepCost& cost, const StepPlan& plan);

}  // namespace protean
