#include "cost/step_time.h"

#include <algorithm>
#include <cmath>

#include "cost/memory.h"

namespace protean {

LayerShares layer_shares(const ModelSpec& spec, const Form& form) {
  // Shares count weights, not bytes; sizes in f32 are proportional to weights.
  LayerShares shares{};
  const auto all = static_cast<double>(layer_bytes(spec, Precision::kF32)) *
                   static_cast<double>(form.layer_precision.size());
  for (const LayerPrecision& layer : form.layer_precision) {
    for (const Component half : kLayerHalves) {
      shares[index_of(layer.of(half))] +=
          static_cast<double>(component_bytes(spec, half, Precision::kF32)) / all;
    }
  }
  return shares;
}

bool StepCost::is_known() const {
  return fixed_us + token_us > 0 || std::any_of(layers.begin(), layers.end(),
                                                [](const LayersCost& of) { return of.is_known(); });
}

StepCost scaled(const StepCost& cost, double factor) {
  StepCost all = cost;
  for (double* us : {&all.fixed_us, &all.token_us, &all.context_token_us, &all.sequence_us,
                     &all.kv_token_us, &all.far_kv_token_us, &all.wake_us}) {
    *us *= factor;
  }
  for (LayersCost& of : all.layers) {
    for (double* us : {&of.step_us, &of.token_us, &of.more_token_us, &of.tile_us}) {
      *us *= factor;
    }
    if (of.sums) {
      of.sums =
          Transfer{.us = of.sums->us * factor, .bytes_per_us = of.sums->bytes_per_us / factor};
    }
  }
  for (LogitsCost& of : all.logits) {
    of.step_us *= factor;
    of.row_us *= factor;
    if (of.shared_us) {
      *of.shared_us *= factor;
    }
  }
  return all;
}

StepPrecision step_precision(const ModelSpec& spec, const Form& form) {
  return {.layers = layer_shares(spec, form),
          .embeddings = form.embeddings,
          .window_tokens = static_cast<double>(spec.attention.sliding_window),
          .windowed_share = windowed_share(spec)};
}

StepCost nominal_step_cost(const ModelSpec& spec) {
  constexpr double kBytesPerUs = 20'000;
  constexpr double kProductsPerUs = 100'000;
  StepCost cost{.fixed_us = 100};
  const auto weights = [](std::int64_t f32_bytes) { return static_cast<double>(f32_bytes) / 4; };
  for (const Precision precision : kPrecisions) {
    LayersCost& layers = cost.of(precision);
    layers.step_us = spec.layers * static_cast<double>(layer_bytes(spec, precision)) / kBytesPerUs;
    layers.token_us = layers.more_token_us =
        spec.layers * weights(layer_bytes(spec, Precision::kF32)) / kProductsPerUs;
    LogitsCost& logits = cost.logits_at(precision);
    logits.step_us = static_cast<double>(vocab_matrix_bytes(spec, precision)) / kBytesPerUs;
    logits.row_us = weights(vocab_matrix_bytes(spec, Precision::kF32)) / kProductsPerUs;
  }
  return cost;
}

double layers_us(const LayersCost& of, double tokens) {
  const double first = std::min(tokens, of.bend_tokens);
  const double passes =
      of.pass_tokens > 0 ? std::max(1.0, std::ceil(tokens / of.pass_tokens)) : 1.0;
  return of.step_us * passes + of.token_us * first + of.more_token_us * (tokens - first) +
         of.tile_us * std::ceil(tokens / of.tile_tokens);
}

namespace {

// The time of a share of the attention. Caches hold the KV of that share alone.
double attention_us(const StepCost& cost, const StepWork& work, double share) {
  return share * (cost.context_token_us * work.context_tokens + cost.sequence_us * work.sequences +
                  cost.kv_token_us * work.kv_tokens) +
         cost.far_kv_token_us * std::max(0.0, share * work.kv_tokens - cost.near_kv_tokens);
}

}  // namespace

double predict_us(const StepCost& cost, const StepWork& work, const StepPrecision& precision) {
  return predict_us(cost, work, precision, DeviceWork{});
}

double predict_us(const StepCost& cost, const StepWork& work, const StepPrecision& precision,
                  const DeviceWork& part) {
  double us = part.begins ? cost.fixed_us + cost.token_us * work.tokens : 0;
  us += attention_us(cost, work, part.attention);
  if (part.logits && work.logit_rows > 0) {
    const LogitsCost& logits = cost.logits_at(precision.embeddings);
    us += logits.step_us + logits.row_us * work.logit_rows;
  }
  for (std::size_t i = 0; i < precision.layers.size(); ++i) {
    if (precision.layers[i] > 0) {
      us += part.weights * precision.layers[i] * layers_us(cost.layers[i], work.tokens);
    }
  }
  return us;
}

int efficient_tokens(const StepCost& cost, const StepPrecision& precision) {
  constexpr int kMost = 8192;
  const auto us = [&](double tokens) { return predict_us(cost, {.tokens = tokens}, precision); };
  const double long_us = (us(2 * kMost) - us(kMost)) / kMost;
  int tokens = 16;
  while (tokens < kMost && us(tokens) > 1.25 * long_us * tokens) {
    tokens *= 2;
  }
  return tokens;
}

double predict_us(const StepCost& cost, const StepPlan& plan) {
  return predict_us(cost, work_of(plan));
}

}  // namespace protean
