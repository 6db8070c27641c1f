#include "cost/shards.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::int64_t kInputBlock = 32;  // of a packed matrix

// True if each shard has to begin with a group, so that stored integers can be copied unchanged.
bool keeps_groups(const StoredWeights& stored) {
  return stored.precision.quantised() ||
         std::any_of(stored.layers.begin(), stored.layers.end(),
                     [](const LayerPrecision& layer) { return layer.mlp.quantised(); });
}

std::int64_t neurons_per_shard(const ModelSpec& spec, int shards) {
  const bool in_groups = keeps_groups(spec.stored);
  return round_up(ceil_div<std::int64_t>(spec.ffn, shards),
                  in_groups ? std::int64_t{spec.stored.group} : kInputBlock);
}

}  // namespace

ModelSpec shard_spec(const ModelSpec& spec, int shards) {
  if (shards == 1) {
    return spec;
  }
  check(shards > 1 && (shards & (shards - 1)) == 0 && spec.attention.kv_heads % shards == 0,
        "shards are a power of two that divides the KV heads");
  ModelSpec shard = spec;
  shard.attention.heads /= shards;
  shard.attention.kv_heads /= shards;
  shard.ffn = static_cast<int>(neurons_per_shard(spec, shards));
  return shard;
}

NeuronRange neurons_of(const ModelSpec& spec, int shard, int shards) {
  check(shard >= 0 && shard < shards, "the shard exists");
  const std::int64_t each = shards == 1 ? spec.ffn : neurons_per_shard(spec, shards);
  const std::int64_t first = std::min<std::int64_t>(shard * each, spec.ffn);
  return {first, std::min<std::int64_t>(each, spec.ffn - first)};
}

}  // namespace protean
