#include "cost/shards.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::int64_t kInputBlock = 32;  // inputs of a block of a packed matrix
constexpr std::int64_t kPanel = 32;       // outputs of a packed matrix

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

std::int64_t vocab_rows_per_shard(const ModelSpec& spec, int shards) {
  return round_up(ceil_div<std::int64_t>(spec.vocab, shards), kPanel);
}

// Returns the `shard`-th piece of `count` things in pieces of `each`; the last ones may be empty.
IndexRange piece_of(std::int64_t count, std::int64_t each, int shard) {
  const std::int64_t first = std::min(shard * each, count);
  return {first, std::min(each, count - first)};
}

}  // namespace

ModelSpec shard_spec(const ModelSpec& spec, int shards) {
  if (shards == 1) {
    return spec;
  }
  check(shards > 1 && (shards & (shards - 1)) == 0 && can_shard(spec, shards),
        "shards are a power of two that divides the KV heads");
  ModelSpec shard = spec;
  shard.attention.heads /= shards;
  shard.attention.kv_heads /= shards;
  shard.ffn = static_cast<int>(neurons_per_shard(spec, shards));
  shard.vocab = static_cast<int>(vocab_rows_per_shard(spec, shards));
  return shard;
}

IndexRange neurons_of(const ModelSpec& spec, int shard, int shards) {
  check(shard >= 0 && shard < shards, "the shard exists");
  return piece_of(spec.ffn, shards == 1 ? spec.ffn : neurons_per_shard(spec, shards), shard);
}

IndexRange vocab_rows_of(const ModelSpec& spec, int shard, int shards) {
  check(shard >= 0 && shard < shards, "the shard exists");
  return piece_of(spec.vocab, shards == 1 ? spec.vocab : vocab_rows_per_shard(spec, shards), shard);
}

}  // namespace protean
