#include "cost/memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cost/shards.h"

namespace protean {
namespace {

constexpr std::int64_t kPadding = 32;            // both sides of a matrix are multiples of it
constexpr std::int64_t kLine = 64;               // on which each matrix begins
constexpr std::int64_t kVectorElementBytes = 4;  // norms and biases stay f32

std::int64_t matrix_bytes(std::int64_t outputs, std::int64_t inputs, const StoredWeights& as) {
  const std::int64_t rows = round_up(outputs, kPadding);
  const double bits =
      static_cast<double>(rows * round_up(inputs, kPadding)) * weight_bits(as.precision);
  return static_cast<std::int64_t>(bits / 8.0) + rows * ceil_div<std::int64_t>(inputs, as.group) *
                                                     traits_of(as.precision.weights).group_bytes;
}

// Bytes of a step's rows as integers: at most 16 bits each, with a scale and a sum for each group
// of
// 32. Rows are padded to tiles of 16.
std::int64_t int8_bytes(std::int64_t rows, std::int64_t inputs) {
  constexpr std::int64_t kTileRows = 16;
  return round_up(rows, kTileRows) * round_up(inputs, kPadding) * 2 +
         rows * ceil_div(inputs, kPadding) * 8;
}

// Bytes of the key or the value of one head.
std::int64_t kv_row_bytes(std::int64_t head_dim, KvPrecision precision) {
  constexpr std::int64_t kScaleBytes = 2;
  switch (precision) {
    case KvPrecision::kF32:
      return 4 * head_dim;
    case KvPrecision::kBf16:
      return 2 * head_dim;
    case KvPrecision::kInt8:
      return head_dim + kScaleBytes;
  }
  return 0;
}

}  // namespace

namespace {

using MatrixSizes = std::vector<std::pair<std::int64_t, std::int64_t>>;

// The matrices of a component, as [outputs, inputs].
MatrixSizes matrices_of(const ModelSpec& spec, Component component) {
  const AttentionSpec& attention = spec.attention;
  const std::int64_t q = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t kv = std::int64_t{attention.kv_heads} * attention.head_dim;
  const std::int64_t hidden = spec.hidden;
  const std::int64_t ffn = spec.ffn;
  switch (component) {
    case Component::kAttention:
      return {{q, hidden}, {kv, hidden}, {kv, hidden}, {hidden, q}};
    case Component::kMlp:
      return spec.mlp.gated ? MatrixSizes{{ffn, hidden}, {ffn, hidden}, {hidden, ffn}}
                            : MatrixSizes{{ffn, hidden}, {hidden, ffn}};
    case Component::kEmbeddings:
      break;
  }
  return MatrixSizes(spec.tied_embeddings ? 1 : 2, {spec.vocab, hidden});
}

std::int64_t vectors_bytes(const ModelSpec& spec, Component component) {
  const AttentionSpec& attention = spec.attention;
  const NormSpec& norms = spec.norms;
  const int before = component == Component::kEmbeddings || norms.before ? norms.bias ? 2 : 1 : 0;
  const int after = component != Component::kEmbeddings && norms.after ? 1 : 0;
  std::int64_t elements = std::int64_t{before + after} * spec.hidden;
  if (component == Component::kAttention) {
    const std::int64_t heads = attention.heads + 2 * std::int64_t{attention.kv_heads};
    const std::int64_t normed =
        attention.qk_norm_over_heads ? attention.heads + attention.kv_heads : 2;
    elements += attention.qkv_bias ? heads * attention.head_dim : 0;
    elements += attention.output_bias ? spec.hidden : 0;
    elements += attention.qk_norm ? normed * attention.head_dim : 0;
  } else if (component == Component::kMlp) {
    const int inner = spec.mlp.gated ? 2 : 1;
    elements += spec.mlp.bias ? std::int64_t{inner} * spec.ffn + spec.hidden : 0;
  } else {
    elements += spec.output_bias ? spec.vocab : 0;
    elements += spec.learned_positions ? std::int64_t{spec.max_context} * spec.hidden : 0;
  }
  return elements * kVectorElementBytes;
}

}  // namespace

std::int64_t component_bytes(const ModelSpec& spec, Component component, Precision precision) {
  std::int64_t bytes = vectors_bytes(spec, component);
  for (const auto& [outputs, inputs] : matrices_of(spec, component)) {
    bytes += matrix_bytes(outputs, inputs, {precision, spec.stored.group});
  }
  return bytes;
}

std::int64_t matrices_bytes(const ModelSpec& spec, Component component, Precision precision) {
  std::int64_t bytes = 0;
  for (const auto& [outputs, inputs] : matrices_of(spec, component)) {
    bytes += round_up(matrix_bytes(outputs, inputs, {precision, spec.stored.group}), kLine);
  }
  return bytes;
}

std::int64_t layer_bytes(const ModelSpec& spec, const LayerPrecision& precision) {
  return component_bytes(spec, Component::kAttention, precision.attention) +
         component_bytes(spec, Component::kMlp, precision.mlp);
}

std::int64_t layer_bytes(const ModelSpec& spec, Precision precision) {
  return layer_bytes(spec, LayerPrecision{precision, precision});
}

std::int64_t vocab_matrix_bytes(const ModelSpec& spec, Precision embeddings) {
  return matrix_bytes(spec.vocab, spec.hidden, {embeddings, spec.stored.group});
}

std::int64_t weight_bytes(const ModelSpec& spec, const Form& form) {
  std::int64_t bytes = component_bytes(spec, Component::kEmbeddings, form.embeddings);
  for (const LayerPrecision& layer : form.layer_precision) {
    bytes += layer_bytes(spec, layer);
  }
  return bytes;
}

// Depth first: a shard that ends a pair is added to the buffer of its neighbour, so two shards need
// one buffer, and each doubling one more.
int partial_sums(int held) {
  int buffers = 1;
  for (int pairs = held / 4; pairs > 0; pairs /= 2) {
    ++buffers;
  }
  return buffers;
}

DeviceShare share_of(const Form& form, const Holding& holding) {
  int held = holding.embeddings.count;
  for (const Holding::Layer& layer : holding.layers) {
    held = std::max({held, layer.attention.count, layer.mlp.count});
  }
  return {.shards = form.shards, .held = held, .exchanges = form.group.size() > 1};
}

DeviceShare widest_share(const Form& form) {
  return {.shards = form.shards, .held = form.shards, .exchanges = true};
}

std::int64_t activation_bytes(const ModelSpec& spec, std::int64_t rows, std::int64_t logit_rows,
                              const DeviceShare& share) {
  const ModelSpec shard = shard_spec(spec, share.shards);
  const AttentionSpec& attention = shard.attention;
  const std::int64_t q = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t kv = std::int64_t{attention.kv_heads} * attention.head_dim;
  // Buffers: residual stream, queries, attention output, keys and values, gate and up.
  const std::int64_t partial =
      share.shards == 1 ? 0 : partial_sums(share.held) + (share.exchanges ? 1 : 0);
  // Integer activations: the product of gate and up reuses the buffer of up if it fits.
  const std::int64_t last = int8_bytes(rows, shard.ffn);
  const bool last_fits = last <= rows * shard.ffn * kVectorElementBytes;
  const std::int64_t int8 = std::max({int8_bytes(rows, std::max(std::int64_t{spec.hidden}, q)),
                                      last_fits ? 0 : last, int8_bytes(logit_rows, spec.hidden)});
  const int added = spec.parallel_halves ? 1 : 0;  // the output of attention
  const std::int64_t row = (1 + partial + added) * spec.hidden + q +
                           share.held * (q + 2 * kv + 2 * std::int64_t{shard.ffn});
  const std::int64_t normed = std::max(rows, logit_rows) * spec.hidden;
  // Rows of logits in the model's order, and before that those of each shard.
  const std::int64_t logits =
      spec.vocab + (share.shards == 1 ? 0 : std::int64_t{share.held} * shard.vocab);
  return (rows * row + normed + logit_rows * logits) * kVectorElementBytes + int8;
}

std::int64_t kv_token_bytes(const ModelSpec& spec, KvPrecision precision) {
  const std::int64_t rows = std::int64_t{2} * spec.layers * spec.attention.kv_heads;
  return rows * kv_row_bytes(spec.attention.head_dim, precision);
}

std::int64_t kv_block_bytes(const ModelSpec& spec, const KvForm& kv) {
  return kv_token_bytes(spec, kv.precision) * kv.block_tokens;
}

std::int64_t kv_layer_block_bytes(const ModelSpec& spec, const KvForm& kv) {
  return kv_block_bytes(spec, kv) / spec.layers;
}

}  // namespace protean
