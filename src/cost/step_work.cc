#include "cost/step_work.h"

#include <algorithm>
#include <cmath>

#include "cost/memory.h"

namespace protean {
namespace {

// Adds the positions [first, end) that a slice reads.
void add_read(double first, double end, double share_of_layers, StepWork& work) {
  work.kv_least_tokens += share_of_layers * (end - first);
  work.kv_tokens += share_of_layers * kKvTileTokens *
                    (std::ceil(end / kKvTileTokens) - std::floor(first / kKvTileTokens));
}

// Adds the attention of a slice: the sum of first_position + i + 1, the positions that its i-th
// token sees.
void add_attention(const SequenceSlice& slice, double share_of_layers, StepWork& work) {
  const double count = slice.token_count;
  const double before = slice.first_position;
  work.context_tokens += share_of_layers * (count * before + count * (count + 1) / 2);
  add_read(0, before + count, share_of_layers, work);
}

// Adds the attention of a slice each of whose tokens sees at most `window` positions.
void add_windowed(const SequenceSlice& slice, int window, double share_of_layers, StepWork& work) {
  const double count = slice.token_count;
  const double before = slice.first_position;
  const double growing =
      std::clamp(window - before, 0.0, count);  // tokens before the window is full
  work.context_tokens += share_of_layers * (growing * before + growing * (growing + 1) / 2 +
                                            (count - growing) * window);
  add_read(std::max(0.0, before + 1 - window), before + count, share_of_layers, work);
}

StepWork counted(const StepPlan& plan, int window, double windowed_share) {
  StepWork work{.tokens = static_cast<double>(plan.tokens.size()),
                .sequences = static_cast<double>(plan.slices.size()),
                .logit_rows = static_cast<double>(plan.samples.size() + plan.scores.size())};
  for (const SequenceSlice& slice : plan.slices) {
    add_attention(slice, 1 - windowed_share, work);
    if (windowed_share > 0) {
      add_windowed(slice, window, windowed_share, work);
    }
  }
  return work;
}

double layer_weights(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  const double heads = 2.0 * attention.head_dim * (attention.heads + attention.kv_heads);
  return spec.hidden * (heads + 3.0 * spec.ffn);
}

}  // namespace

StepWork work_of(const StepPlan& plan) {
  return counted(plan, 0, 0);
}

double windowed_share(const ModelSpec& spec) {
  int windowed = 0;
  for (int layer = 0; layer < spec.layers; ++layer) {
    windowed += spec.attention.window_of(layer) > 0 ? 1 : 0;
  }
  return static_cast<double>(windowed) / std::max(1, spec.layers);
}

StepWork work_of(const StepPlan& plan, const ModelSpec& spec) {
  return counted(plan, spec.attention.sliding_window, windowed_share(spec));
}

StepDemand demand_of(const StepWork& work, const ModelSpec& spec, const Form& form) {
  StepDemand demand;
  for (const LayerPrecision& layer : form.layer_precision) {
    demand.weight_bytes += static_cast<double>(layer_bytes(spec, layer));
  }
  const auto table = static_cast<double>(vocab_matrix_bytes(spec, form.embeddings));
  demand.weight_bytes += table / spec.vocab * work.tokens + (work.logit_rows > 0 ? table : 0);
  demand.kv_bytes =
      work.kv_least_tokens * static_cast<double>(kv_token_bytes(spec, form.kv.precision));
  const double attention = 4.0 * spec.attention.heads * spec.attention.head_dim;
  demand.operations = 2 * work.tokens * spec.layers * layer_weights(spec) +
                      2 * work.logit_rows * spec.vocab * spec.hidden +
                      attention * spec.layers * work.context_tokens;
  return demand;
}

}  // namespace protean
