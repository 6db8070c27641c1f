#include "model/shard_checkpoint.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace protean {

ShardCheckpoint::ShardCheckpoint(const Checkpoint& model, int shard, int shards)
    : model_(model), shard_(shard), shards_(shards), spec_(shard_spec(model.spec(), shards)) {
  check(shard >= 0 && shard < shards, "the shard exists");
}

ShardCheckpoint::Cut ShardCheckpoint::cut_heads(int model_heads, int shard_heads) const {
  const std::int64_t dim = spec_.attention.head_dim;
  return {model_heads * dim, shard_ * shard_heads * dim, shard_heads * dim, shard_heads * dim};
}

ShardCheckpoint::Cut ShardCheckpoint::cut_neurons() const {
  const IndexRange neurons = neurons_of(model_.spec(), shard_, shards_);
  return {model_.spec().ffn, neurons.first, neurons.count, spec_.ffn};
}

ShardCheckpoint::Cut ShardCheckpoint::cut_vocab() const {
  const IndexRange rows = vocab_rows_of(model_.spec(), shard_, shards_);
  return {model_.spec().vocab, rows.first, rows.count, spec_.vocab};
}

ShardCheckpoint::Cut ShardCheckpoint::rows_of(TensorRole role) const {
  const AttentionSpec& model = model_.spec().attention;
  switch (role) {
    case TensorRole::kQuery:
      return cut_heads(model.heads, spec_.attention.heads);
    case TensorRole::kKey:
    case TensorRole::kValue:
      return cut_heads(model.kv_heads, spec_.attention.kv_heads);
    case TensorRole::kGate:
    case TensorRole::kUp:
      return cut_neurons();
    case TensorRole::kEmbedding:
    case TensorRole::kOutput:
      return cut_vocab();
    case TensorRole::kAttentionOutput:
    case TensorRole::kDown:
      return {spec_.hidden, 0, spec_.hidden, spec_.hidden};
    case TensorRole::kPositions:
      return {spec_.max_context, 0, spec_.max_context, spec_.max_context};
    default:
      return {1, 0, 1, 1};
  }
}

ShardCheckpoint::Cut ShardCheckpoint::columns_of(TensorRole role) const {
  const AttentionSpec& model = model_.spec().attention;
  switch (role) {
    case TensorRole::kAttentionOutput:
    case TensorRole::kQueryBias:
      return cut_heads(model.heads, spec_.attention.heads);
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return cut_heads(model.kv_heads, spec_.attention.kv_heads);
    case TensorRole::kDown:
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
      return cut_neurons();
    case TensorRole::kOutputBias:
      return cut_vocab();
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      if (model.qk_norm_over_heads) {
        return columns_of(role == TensorRole::kQueryNorm ? TensorRole::kQueryBias
                                                         : TensorRole::kKeyBias);
      }
      return {model.head_dim, 0, model.head_dim, model.head_dim};
    case TensorRole::kAttentionOutputBias:
    case TensorRole::kDownBias:
      return {spec_.hidden, 0, shard_ == 0 ? spec_.hidden : 0, spec_.hidden};
    default:
      return {spec_.hidden, 0, spec_.hidden, spec_.hidden};
  }
}

void ShardCheckpoint::read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                                float* out) const {
  const Cut rows = rows_of(role);
  const Cut columns = columns_of(role);
  check(row >= 0 && count >= 0 && row + count <= rows.size, "rows are inside the shard");
  const std::int64_t real = std::clamp<std::int64_t>(rows.count - row, 0, count);
  std::fill_n(out, count * columns.size, 0.0F);
  if (real == 0) {
    return;
  }
  std::vector<float> whole(static_cast<std::size_t>(real * columns.model));
  model_.read_rows(role, layer, rows.first + row, real, whole.data());
  for (std::int64_t r = 0; r < real; ++r) {
    std::copy_n(whole.begin() + r * columns.model + columns.first, columns.count,
                out + r * columns.size);
  }
}

std::optional<QuantFormat> ShardCheckpoint::stored_format(TensorRole role, int layer) const {
  const std::optional<QuantFormat> format = model_.stored_format(role, layer);
  // The answer is the same for all shards, so that they have one format.
  return format && columns_of(role).size % format->group == 0 ? format : std::nullopt;
}

QuantizedMatrix ShardCheckpoint::read_stored_rows(TensorRole role, int layer, std::int64_t row,
                                                  std::int64_t count) const {
  const Cut rows = rows_of(role);
  const Cut columns = columns_of(role);
  check(row >= 0 && count >= 0 && row + count <= rows.size, "rows are inside the shard");
  const std::optional<QuantFormat> format = stored_format(role, layer);
  check(format.has_value(), "stored rows are of what is stored so");
  // Padding has codes and scales of zero.
  QuantizedMatrix shard = QuantizedMatrix::sized(*format, count, columns.size);
  const std::int64_t real = std::clamp<std::int64_t>(rows.count - row, 0, count);
  if (real == 0) {
    return shard;
  }
  const QuantizedMatrix whole = model_.read_stored_rows(role, layer, rows.first + row, real);
  const std::int64_t first_group = columns.first / format->group;
  const std::int64_t groups = std::min(shard.groups(), whole.groups() - first_group);
  for (std::int64_t r = 0; r < real; ++r) {
    std::copy_n(whole.codes.begin() + r * whole.inputs + columns.first, columns.count,
                shard.codes.begin() + r * shard.inputs);
    const auto copy_groups = [&](const std::vector<float>& from, std::vector<float>& to) {
      std::copy_n(from.begin() + r * whole.groups() + first_group,
                  std::max<std::int64_t>(groups, 0), to.begin() + r * shard.groups());
    };
    copy_groups(whole.scales, shard.scales);
    copy_groups(whole.offsets, shard.offsets);
  }
  return shard;
}

}  // namespace protean
