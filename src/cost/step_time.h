#pragma once

#include <array>
#include <cstddef>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/step.h"
#include "cost/step_work.h"

namespace protean {

// Of the layers' weights, the share at each precision; they add up to 1, or to 0 where nobody asks.
using LayerShares = std::array<double, kPrecisions.size()>;

LayerShares layer_shares(const ModelSpec& spec, const Form& form);

// What a model's layers cost in a step, were all of them at one precision: a line over the step's
// tokens that is steeper or flatter after a bend, above all the tokens that reading the weights
// hides; and a stair, because kernels multiply rows in tiles and a part of one takes long too.
struct LayersCost {
  double step_us = 0;
  double token_us = 0;       // of each token up to the bend
  double more_token_us = 0;  // and of each beyond
  double tile_us = 0;        // of each tile begun

  bool is_known() const { return step_us + token_us + more_token_us + tile_us > 0; }
};

// Time of a step of one model on one machine: KunServe section 4.2, equations 1 to 3, in which
// gamma is fixed_us and the layers' step_us (once a step, as equation 3 has it), beta the layers'
// time per token, by precision, and alpha context_token_us. Decoding needs more: keys and values
// are read once for each sequence, and rows of logits are few beside a prompt's tokens. Nothing is
// negative, so more work never takes less time.
struct StepCost {
  double fixed_us = 0;
  double token_us = 0;
  double context_token_us = 0;
  double sequence_us = 0;
  double kv_token_us = 0;
  double logits_us = 0;  // of a step with any: the output projection is read once
  double logit_row_us = 0;
  std::array<LayersCost, kPrecisions.size()> layers{};
  double bend_tokens = 16;
  double tile_tokens = 12;

  LayersCost& of(Precision precision) { return layers.at(index_of(precision)); }
  const LayersCost& of(Precision precision) const { return layers.at(index_of(precision)); }
};

// Layers that have no share cost nothing.
double predict_us(const StepCost& cost, const StepWork& work, const LayerShares& layers = {});
double predict_us(const StepCost& cost, const StepPlan& plan);

}  // namespace protean
