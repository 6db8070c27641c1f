#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "control/scene_for_test.h"
#include "cost/memory.h"
#include "sim/simulation.h"

namespace protean {

// How fast the modelled machine multiplies at each precision; all of them read weights at 30 GB/s.
enum class Speed {
  kReading,  // all precisions multiply alike
  kVnni,     // 8-bit activations multiply 2.5 times as fast as bf16
  kAmx,      // 1.5 times
};

// A multiply-add of attention takes `attention` times as long as one of weights at bf16.
inline StepCost step_cost_of(const ModelSpec& spec, Speed speed, double token_us,
                             double attention) {
  const double weights =
      spec.layers * static_cast<double>(layer_bytes(spec, Precision::kF32)) / sizeof(float);
  const double products = 2.0 * spec.layers * spec.attention.heads * spec.attention.head_dim;
  StepCost cost{.fixed_us = 1000, .context_token_us = attention * token_us * products / weights};
  for (const Precision precision : kPrecisions) {
    const double faster = !precision.integer_activations() || speed == Speed::kReading ? 1
                          : speed == Speed::kVnni                                      ? 2.5
                                                                                       : 1.5;
    cost.of(precision).step_us =
        spec.layers * static_cast<double>(layer_bytes(spec, precision)) / 30000;
    cost.of(precision).token_us = token_us / faster;
    cost.of(precision).more_token_us = token_us / faster;
  }
  return cost;
}

struct Scene {
  Speed speed = Speed::kReading;
  double kv_share = 0.4;  // of the device's layers and KV at full precision
  double token_us = 50;
  double attention = 1;
  int step_tokens = 512;
  int most_sequences = 64;
  MorphMode mode = MorphMode::kBalanced;
};

inline SimulationConfig config_of(const Scene& scene) {
  FormBounds bounds = bounds_for_test(16, scene.kv_share);
  if (scene.speed != Speed::kReading) {
    bounds.ladder = {Precision::kBf16, Precision::kW8A8, Precision::kW4A8};
  }
  const MorphConfig morph{.mode = scene.mode,
                          .policy = options_for(scene.mode),
                          .bounds = bounds,
                          .start = bounds.full};
  const std::int64_t largest = form_path(bounds).back().kv.blocks;
  return {.engine = {.scheduler = {.kv_blocks = bounds.full.kv.blocks,
                                   .largest_kv_blocks = largest,
                                   .block_tokens = 16,
                                   .max_num_seqs = scene.most_sequences,
                                   .max_num_batched_tokens = scene.step_tokens,
                                   .max_model_len = static_cast<int>(16 * largest)},
                     .morph = morph},
          .step_cost = step_cost_of(bounds.spec, scene.speed, scene.token_us, scene.attention),
          .seed = 1,
          .morph_cost = {.copy_bytes_per_us = 500}};
}

inline SimulationConfig fixed(SimulationConfig config) {
  config.engine.morph->mode = MorphMode::kOff;
  return config;
}

// What became of a load.
struct Outcome {
  std::vector<double> ttft_s;  // sorted
  int late = 0;                // first tokens after more than 2 s, refusals and failures
  int changes = 0;             // times that another form was wanted
  int lowerings = 0;           // how often lowering began, at first or after precision was raised
  std::int64_t swaps = 0;
  std::int64_t most_blocks = 0;
  double full_share = 0;          // share of output tokens computed at full precision
  TimeNs lowered_ns = -1;         // when the first layer was lowered
  TimeNs back_ns = -1;            // when full precision was last reached again
  bool back = true;               // the last form has full precision
  bool below_eight_bits = false;  // any layer was wanted at fewer than 8 bits

  double ttft_p95_s() const { return ttft_s.empty() ? 0 : ttft_s[ttft_s.size() * 95 / 100]; }
};

// Counts changes of the wanted form until `until_ns`.
inline Outcome outcome(const SimulationReport& report,
                       TimeNs until_ns = std::numeric_limits<TimeNs>::max()) {
  Outcome found;
  found.late = static_cast<int>(report.refused);
  for (const FinishedRequest& request : report.finished) {
    if (request.times.first_token_ns < 0) {
      ++found.late;
      continue;
    }
    found.ttft_s.push_back(
        static_cast<double>(request.times.first_token_ns - request.times.arrived_ns) / kNsPerS);
    found.late += found.ttft_s.back() > 2 ? 1 : 0;
  }
  std::sort(found.ttft_s.begin(), found.ttft_s.end());
  std::int64_t down = 0;
  std::int64_t up = 0;
  bool going_down = false;
  const Form& first = report.forms.front().status->form;
  Form wanted = first;
  for (const auto& [at_ns, replica, status] : report.forms) {
    found.changes += status->wanted == wanted || at_ns > until_ns ? 0 : 1;
    wanted = status->wanted;
    for (const LayerPrecision& layer : wanted.layer_precision) {
      found.below_eight_bits =
          found.below_eight_bits || weight_bits(layer.attention) < 8 || weight_bits(layer.mlp) < 8;
    }
    if (status->swaps_down_total > down && !going_down) {
      ++found.lowerings;
      going_down = true;
    } else if (status->swaps_up_total > up) {
      going_down = false;
    }
    down = status->swaps_down_total;
    up = status->swaps_up_total;
    found.most_blocks = std::max(found.most_blocks, status->form.kv.blocks);
    const bool full = status->form.layer_precision == first.layer_precision;
    if (!full && found.lowered_ns < 0) {
      found.lowered_ns = at_ns;
    }
    if (full && !found.back) {
      found.back_ns = at_ns;
    }
    found.back = full;
  }
  found.swaps = down + up;
  double all = 0;
  for (const TokensAt& tokens : report.forms.back().status->output_tokens) {
    all += static_cast<double>(tokens.tokens);
    found.full_share += tokens.precision == "bf16:16" ? static_cast<double>(tokens.tokens) : 0.0;
  }
  found.full_share /= std::max(all, 1.0);
  return found;
}

// Poisson arrivals at a rate that changes with time, of 64 to 448 prompt tokens and answers of 32
// to 224 tokens.
template <class Rate>
std::vector<TraceRequest> arrivals(Rate rate_per_s, double until_s, unsigned seed) {
  std::mt19937 random(seed);
  const auto uniform = [&] { return (static_cast<double>(random()) + 0.5) / 4294967296.0; };
  std::vector<TraceRequest> trace;
  constexpr double kMost = 200;  // rate of the process from which requests are drawn
  for (double at_s = -std::log(uniform()) / kMost; at_s < until_s;
       at_s -= std::log(uniform()) / kMost) {
    if (uniform() * kMost < rate_per_s(at_s)) {
      trace.push_back({static_cast<TimeNs>(at_s * kNsPerS), 64 + static_cast<int>(uniform() * 384),
                       32 + static_cast<int>(uniform() * 192)});
    }
  }
  return trace;
}

inline void in_order(std::vector<TraceRequest>& trace) {
  std::stable_sort(trace.begin(), trace.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.at_ns < b.at_ns; });
}

}  // namespace protean
