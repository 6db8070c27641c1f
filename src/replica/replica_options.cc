#include "replica/replica_options.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>

namespace protean {
namespace {

// Returns the number of pipeline stages: each computes a step of its own.
int steps_in_flight(const Form& form) {
  return static_cast<int>(stages_of(form).size());
}

// Returns the time that a token more takes in a long step.
double token_us(const StepCost& cost, const StepPrecision& precision) {
  constexpr double kTokens = 512;
  return (predict_us(cost, {.tokens = 2 * kTokens}, precision) -
          predict_us(cost, {.tokens = kTokens}, precision)) /
         kTokens;
}

// Returns what makes the steps of a pipeline take about equal times: what the cost model says of
// the slowest stage, without what every step takes alike.
StepBalance balance_of(const ReplicaOptions& options, const ModelSpec& spec, const Form& form) {
  const std::string& by = options.model.microbatches;
  if (by == "tokens") {
    return {};
  }
  const StepPrecision& precision = options.sizing.step_precision;
  const StepCost& whole = options.cost.on(stages_of(form).front().devices.size());
  if (by == "released") {
    return {.least_tokens = efficient_tokens(whole, precision), .longest_first = true};
  }
  StepCost cost = cost_of(options.cost, spec, form);
  cost = token_us(cost, precision) > 0 ? cost : nominal_step_cost(spec);
  // Caches hold a part of the most KV that a step reads.
  const double most = static_cast<double>(form.kv.blocks * form.kv.block_tokens) /
                      static_cast<double>(stages_of(form).size());
  const double far = std::max(0.0, 1 - cost.near_kv_tokens / std::max(1.0, most));
  return {.per_token = token_us(cost, precision),
          .per_position = cost.context_token_us,
          .per_sequence = cost.sequence_us + cost.logits_at(precision.embeddings).row_us,
          .per_kv_token = cost.kv_token_us + far * cost.far_kv_token_us,
          .least_tokens = by == "lookahead" ? efficient_tokens(whole, precision) : 0};
}

}  // namespace

ReadComponent read_from(std::shared_ptr<VariantStore> variants) {
  return [variants = std::move(variants)](const ComponentVariant& which,
                                          std::span<std::byte> memory, const Pace& pace) {
    std::string remark;
    const Status read = variants->read(which, memory, pace, &remark);
    return read ? Result<std::string>(std::move(remark)) : read.error();
  };
}

bool may_trade_memory(const ReplicaOptions& options) {
  return options.morph && options.morph->mode != MorphMode::kOff &&
         options.morph->bounds.most_kv_blocks == 0 && options.sizing.replicas() == 1;
}

bool may_join(const ReplicaOptions& options) {
  return options.morph && options.sizing.joins;
}

EngineConfig engine_config(const ReplicaOptions& options, const ModelSpec& spec) {
  const ModelOptions& model = options.model;
  const Sizing& sizing = options.sizing;
  return {.scheduler = {.kv_blocks = sizing.form.kv.blocks,
                        .largest_kv_blocks = sizing.largest_kv_blocks,
                        .block_tokens = sizing.form.kv.block_tokens,
                        .max_num_seqs = model.max_num_seqs,
                        .max_num_batched_tokens = model.max_num_batched_tokens,
                        .max_model_len = sizing.max_model_len,
                        .prefix_caching = model.prefix_caching,
                        .steps_in_flight = steps_in_flight(sizing.form),
                        .balance = balance_of(options, spec, sizing.form)},
          .max_in_flight = steps_in_flight(sizing.form),
          .morph = options.morph,
          .step_cost = cost_of(options.cost, spec, sizing.form),
          .path_cost = path_cost_of(options.cost, spec, sizing.form),
          .step_precision = options.sizing.step_precision};
}

// The devices are as many, so the engine may have as many sequences and steps in flight.
EngineConfig wide_engine_config(const ReplicaOptions& options, const ModelSpec& spec,
                                const Form& form) {
  EngineConfig config = engine_config(options, spec);
  const auto replicas = static_cast<int>(form.group.size() / options.sizing.form.group.size());
  SchedulerConfig& scheduler = config.scheduler;
  scheduler.kv_blocks = form.kv.blocks;
  scheduler.max_num_seqs =
      std::min(scheduler.max_num_seqs * replicas, scheduler.max_num_batched_tokens);
  scheduler.steps_in_flight = config.max_in_flight = steps_in_flight(form);
  scheduler.balance = balance_of(options, spec, form);
  FormBounds& bounds = config.morph->bounds;
  config.morph->start = form;
  bounds.full = form;
  bounds.full.layer_precision = options.morph->bounds.full.layer_precision;
  bounds.full.embeddings = options.morph->bounds.full.embeddings;
  const bool keeps_kv = bounds.most_kv_blocks > 0;  // what its precisions leave free is not for KV
  bounds.most_kv_blocks = 0;
  bounds.full.kv.blocks = std::max(form.kv.blocks, kv_blocks_that_fit(bounds, bounds.full));
  bounds.most_kv_blocks = keeps_kv ? bounds.full.kv.blocks : 0;
  scheduler.largest_kv_blocks = form_path(bounds).back().kv.blocks;
  config.step_cost = cost_of(options.cost, spec, form);
  config.path_cost = path_cost_of(options.cost, spec, form);
  return config;
}

std::optional<GroupConfig> group_config(const ReplicaOptions& options, const ModelSpec& spec) {
  if (!may_join(options)) {
    return std::nullopt;
  }
  constexpr double kUsPerS = 1e6;
  return GroupConfig{
      .spec = spec,
      .budget = options.sizing.budget,
      .form = options.sizing.form,
      .wide_engine = [options,
                      spec](const Form& form) { return wide_engine_config(options, spec, form); },
      .steps_at_once = options.holds_at_once,
      .scale = options.scale,
      .drop = options.drop,
      .scaler_after_ns = options.scaler_after_ns,
      .kv_bytes_per_s = options.cost.exchange.bytes_per_us * kUsPerS,
      .devices_on_link = options.cost.devices_on_link};
}

FingerprintOptions fingerprint_options(const ReplicaOptions& options) {
  const Form& form = options.sizing.form;
  FingerprintOptions wanted{.kv = form.kv, .cpus = options.sizing.cpus.front()};
  const std::vector<CpuShare>& cpus = options.sizing.cpus;
  if (cpus.size() > 1 && form.shards > 1) {  // else no devices share a layer
    wanted.sharing = {cpus[0], cpus[1]};
  }
  wanted.page_bytes = options.morph ? page_bytes_of_pool(options.sizing.budget.page_bytes) : 0;
  const auto may_have = [&](Precision precision) {
    return layers_at(form, precision) > 0 ||
           (options.morph &&
            std::find(options.morph->bounds.ladder.begin(), options.morph->bounds.ladder.end(),
                      precision) != options.morph->bounds.ladder.end());
  };
  std::copy_if(kPrecisions.begin(), kPrecisions.end(), std::back_inserter(wanted.layers), may_have);
  return wanted;
}

}  // namespace protean
