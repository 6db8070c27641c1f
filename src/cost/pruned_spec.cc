#include "cost/pruned_spec.h"

#include <algorithm>
#include <cmath>

namespace protean {
namespace {

constexpr int kNeuronBlock = 32;
constexpr int kHeadBlock = 8;

AttentionSpec pruned_heads(const AttentionSpec& attention, double keep) {
  AttentionSpec pruned = attention;
  const int queries = attention.heads / attention.kv_heads;
  if (queries > 1) {
    pruned.heads = attention.kv_heads * std::max(1, static_cast<int>(std::lround(queries * keep)));
    return pruned;
  }
  if (attention.kv_heads % kHeadBlock == 0) {
    const int blocks = static_cast<int>(std::lround(attention.kv_heads * keep / kHeadBlock));
    pruned.heads = pruned.kv_heads = kHeadBlock * std::max(1, blocks);
  }
  return pruned;
}

double attention_weights(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  return 2.0 * spec.hidden * attention.head_dim * (attention.heads + attention.kv_heads);
}

}  // namespace

ModelSpec pruned_spec(const ModelSpec& spec, const Pruning& pruning) {
  if (pruning.kind != PruningKind::kStructured) {
    return spec;
  }
  const double keep = 1.0 - pruning.percent / 100.0;
  const double mlp_weights = 3.0 * spec.hidden;  // weights of a neuron
  ModelSpec pruned = spec;
  pruned.attention = pruned_heads(spec.attention, keep);
  const double left =
      keep * (attention_weights(spec) + mlp_weights * spec.ffn) - attention_weights(pruned);
  const int blocks = static_cast<int>(std::lround(left / mlp_weights / kNeuronBlock));
  pruned.ffn = std::clamp(blocks * kNeuronBlock, std::min(kNeuronBlock, spec.ffn), spec.ffn);
  return pruned;
}

}  // namespace protean
