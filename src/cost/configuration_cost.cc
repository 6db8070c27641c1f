#include "cost/configuration_cost.h"

#include <algorithm>

#include "base/units.h"
#include "cost/memory.h"
#include "cost/prompt_steps.h"
#include "cost/pruned_spec.h"
#include "cost/shards.h"
#include "cost/step_sizes.h"

namespace protean {
namespace {

constexpr int kBlockTokens = 16;
constexpr double kStepTokens = 2048;    // of prompts, as servers take by default
constexpr double kActivationBytes = 4;  // f32, between stages and in sums
constexpr double kSumsOfLayer = 2;      // one for each half

StepPrecision precision_of(const Configuration& configuration) {
  StepPrecision precision{.embeddings = default_embeddings_precision(configuration.stored())};
  precision.layers[index_of(configuration.stored())] = 1;
  return precision;
}

StepWork work_of(const StepSizes& sizes, const ModelSpec& spec) {
  return work_of(plan_of(sizes, spec.vocab, kBlockTokens), spec);
}

// The step in which part `at` of the equal `parts` of a request's prompt is computed, while the
// others decode, each in one part. The last part draws the first token.
StepWork first_step(const ModelSpec& spec, const PlannedLoad& load, int at, int parts) {
  const auto until = [&](int of, int part) {
    return static_cast<int>(std::int64_t{of} * part / parts);
  };
  const auto share = [&](int of) { return until(of, at + 1) - until(of, at); };
  const int decodes = share(load.batch - 1);
  StepSizes sizes = decode_sizes(decodes, load.context());
  sizes.slices.insert(sizes.slices.begin(), {.context = until(load.prompt_tokens, at),
                                             .tokens = share(load.prompt_tokens)});
  StepWork work = work_of(sizes, spec);
  work.logit_rows = decodes + (at + 1 == parts ? 1 : 0);
  return work;
}

// The time of a step on its way through all stages.
struct StagedStep {
  double path_us = 0;     // through all stages, with the messages between them
  double slowest_us = 0;  // time of the slowest stage
};

StagedStep staged_step(const ModelSpec& spec, const Configuration& configuration,
                       const ConfigurationSteps& steps, const StepWork& work) {
  const StepPrecision precision = precision_of(configuration);
  const double us = predict_us(steps.cost, work, precision);
  const int stages = configuration.stages;
  if (stages == 1) {
    return {us, us};
  }
  StepWork inner = work;  // without logits
  inner.logit_rows = 0;
  const double layers_us = predict_us(steps.cost, inner, precision) - steps.cost.fixed_us;
  const double most = ceil_div(spec.layers, stages);
  const double send_us = steps.send.time_us(work.tokens * spec.hidden * kActivationBytes);
  const double logits_us = us - layers_us - steps.cost.fixed_us;
  return {.path_us = us + (stages - 1) * (steps.cost.fixed_us + send_us),
          .slowest_us = steps.cost.fixed_us + layers_us * most / spec.layers + send_us + logits_us};
}

}  // namespace

std::int64_t ConfigurationMemory::total_bytes(std::span<const int> stage_layers) const {
  std::int64_t bytes = 0;
  for (std::size_t stage = 0; stage < stage_layers.size(); ++stage) {
    const bool end = stage == 0 || stage + 1 == stage_layers.size();
    bytes += tensor * device_bytes(stage_layers[stage], end);
  }
  return bytes;
}

std::int64_t ConfigurationMemory::fullest_bytes(std::span<const int> stage_layers) const {
  std::int64_t most = 0;
  for (std::size_t stage = 0; stage < stage_layers.size(); ++stage) {
    const bool end = stage == 0 || stage + 1 == stage_layers.size();
    most = std::max(most, device_bytes(stage_layers[stage], end));
  }
  return most;
}

ConfigurationMemory memory_of(const ModelSpec& spec, const Configuration& configuration,
                              const PlannedLoad& load) {
  const int tensor = configuration.tensor;
  const ModelSpec pruned = pruned_spec(spec, configuration.pruning);
  const ModelSpec shard = shard_spec(pruned, tensor);
  const std::int64_t kv_tokens = std::int64_t{load.batch} * round_up(load.context(), kBlockTokens);
  const std::int64_t kv_bytes = kv_tokens * kv_token_bytes(pruned, configuration.kv) / spec.layers;
  const std::int64_t rows = load.prompt_tokens + load.batch - 1;
  const std::int64_t between_stages =
      configuration.stages > 1 ? std::int64_t{configuration.stages} * rows * spec.hidden *
                                     static_cast<std::int64_t>(kActivationBytes)
                               : 0;
  return {
      .tensor = tensor,
      .block_bytes = layer_bytes(shard, configuration.stored()) + kv_bytes / tensor,
      .end_bytes = component_bytes(shard, Component::kEmbeddings,
                                   default_embeddings_precision(configuration.stored())),
      .buffer_bytes = activation_bytes(
                          pruned, rows, load.batch,
                          {.shards = tensor, .held = 1, .exchanges = configuration.devices() > 1}) +
                      between_stages};
}

Latency latency_of(const ModelSpec& spec, const Configuration& configuration,
                   const PlannedLoad& load, const ConfigurationSteps& steps) {
  const ModelSpec pruned = pruned_spec(spec, configuration.pruning);
  const int pieces =
      steps.divides_prompts
          ? static_cast<int>(prompt_steps(load.prompt_tokens, configuration.stages, kStepTokens))
          : 1;
  const int parts = std::min(configuration.stages, load.batch);
  const StepSizes rows =
      decode_sizes(ceil_div(load.batch, parts), load.prompt_tokens + load.output_tokens / 2);
  const StagedStep next = staged_step(pruned, configuration, steps, work_of(rows, pruned));
  const double round_us = std::max(next.path_us, parts * next.slowest_us);
  // The steps before the last one pass the slowest stage one after the other.
  Latency latency{.ttft_us = 0, .tpot_us = round_us};
  double busy_us = 0;  // of the slowest stage
  for (int piece = 0; piece < pieces; ++piece) {
    const StagedStep step =
        staged_step(pruned, configuration, steps, first_step(pruned, load, piece, pieces));
    latency.ttft_us += piece + 1 < pieces ? step.slowest_us : step.path_us;
    busy_us += step.slowest_us;
  }
  // While an answer is drawn, each of the other requests ends and another one begins.
  const double prompts = (load.batch - 1.0) / std::max(1, load.output_tokens);
  latency.tpot_us += prompts * std::max(0.0, busy_us - round_us);
  return latency;
}

StepCost divided_cost(const StepCost& whole, const ModelSpec& spec,
                      const Configuration& configuration, const Transfer& assumed) {
  const ModelSpec pruned = pruned_spec(spec, configuration.pruning);
  const int tensor = configuration.tensor;
  const Precision weights = configuration.stored();
  const auto bytes = static_cast<double>(layer_bytes(spec, weights));
  const double left = static_cast<double>(layer_bytes(pruned, weights)) / bytes;
  StepCost cost = whole;
  LayersCost& layers = cost.of(weights);
  for (double* us : {&layers.step_us, &layers.token_us, &layers.more_token_us, &layers.tile_us}) {
    *us *= left / tensor;
  }
  if (tensor > 1) {
    const Transfer sums = layers.sums.value_or(assumed);
    const double row_us = sums.time_us(spec.hidden * kActivationBytes) - sums.us;
    layers.step_us += kSumsOfLayer * spec.layers * sums.us;
    layers.token_us += kSumsOfLayer * spec.layers * row_us;
    layers.more_token_us += kSumsOfLayer * spec.layers * row_us;
  }
  LogitsCost& logits = cost.logits_at(default_embeddings_precision(weights));
  // Devices that read from one memory may be no faster together.
  if (tensor > 1) {
    logits.step_us = std::max(logits.step_us, 2 * logits.shared_us.value_or(0));
  }
  logits.step_us /= tensor;
  logits.row_us /= tensor;
  cost.context_token_us /= tensor;
  cost.kv_token_us /= tensor;
  cost.far_kv_token_us /= tensor;
  cost.near_kv_tokens *= tensor;
  return cost;
}

Transfer learned_sums(const StepCost& alone, const ModelSpec& spec, Precision weights,
                      const TimedStep& few, const TimedStep& more) {
  StepCost whole = alone;
  whole.of(weights).sums = Transfer{};
  const StepCost half = divided_cost(whole, spec, {.tensor = 2, .weights = weights}, {});
  const auto sum_us = [&](const TimedStep& step) {
    const double sums = kSumsOfLayer * spec.layers * step.precision.layers.at(index_of(weights));
    return std::max(0.0, step.us - predict_us(half, step.work, step.precision)) / sums;
  };
  const double few_us = sum_us(few);
  const double row_us =
      std::max(0.0, sum_us(more) - few_us) / std::max(1.0, more.work.tokens - few.work.tokens);
  return {.us = std::max(0.0, few_us - few.work.tokens * row_us),
          .bytes_per_us = row_us > 0 ? spec.hidden * kActivationBytes / row_us : 0};
}

bool knows_sums(const StepCost& cost, std::span<const Precision> layers) {
  return std::all_of(layers.begin(), layers.end(), [&](Precision precision) {
    return cost.of(precision).sums &&
           cost.logits_at(default_embeddings_precision(precision)).shared_us;
  });
}

void add_sums(const StepCost& from, StepCost& to) {
  for (const Precision precision : kPrecisions) {
    if (LayersCost& layers = to.of(precision); layers.is_known() && !layers.sums) {
      layers.sums = from.of(precision).sums;
    }
    if (LogitsCost& logits = to.logits_at(precision); logits.is_known() && !logits.shared_us) {
      logits.shared_us = from.logits_at(precision).shared_us;
    }
  }
}

}  // namespace protean
