#include "tests/checkpoints/random_weights.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <numbers>
#include <random>
#include <utility>

#include "tests/checkpoints/family_names.h"

namespace protean {
namespace {

constexpr double kGain = 1.2;
constexpr double kNormDeviation = 0.2;
constexpr double kBiasDeviation = 0.3;

// Makes the tensors of a model in the order that gives each its numbers.
class Tensors {
 public:
  explicit Tensors(const ModelSpec& spec) : spec_(spec) {}

  std::vector<WeightTensor> all();

 private:
  WeightTensor& matrix(std::string_view what, std::int64_t rows, std::int64_t columns) {
    WeightTensor& tensor = add(what, "weight", columns);
    tensor.rows = rows;
    tensor.deviation = kGain / std::sqrt(static_cast<double>(columns));
    return tensor;
  }
  // What a layer adds to the residual stream is less in deeper models, as in trained ones, so that
  // the layers together add as much. Otherwise roundings of one layer would grow in the next ones.
  void output_matrix(std::string_view what, std::int64_t columns) {
    matrix(what, spec_.hidden, columns).deviation *= std::sqrt(2.0 / spec_.layers);
  }
  WeightTensor& bias(std::string_view what, std::int64_t size) {
    WeightTensor& tensor = add(what, "bias", size);
    tensor.deviation = kBiasDeviation;
    return tensor;
  }
  void norm(std::string_view what, std::int64_t size, bool biased) {
    WeightTensor& tensor = add(what, "weight", size);
    tensor.mean = 1.0;
    tensor.deviation = kNormDeviation;
    tensor.is_norm = true;
    if (biased) {
      bias(what, size);
    }
  }
  WeightTensor& add(std::string_view what, std::string_view kind, std::int64_t columns) {
    const TensorName name = tensor_name_of(spec_, what, layer_);
    tensors_.push_back({.what = fmt::format("{}.{}", what, kind),
                        .layer = layer_,
                        .hf_name = fmt::format("{}.{}", name.hf, kind),
                        .gguf_name = fmt::format("{}.{}", name.gguf, kind),
                        .columns = columns});
    return tensors_.back();
  }
  void add_attention();
  void add_mlp();

  const ModelSpec& spec_;
  int layer_ = -1;
  std::vector<WeightTensor> tensors_;
};

void Tensors::add_attention() {
  const AttentionSpec& attention = spec_.attention;
  const std::int64_t queries = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t keys = std::int64_t{attention.kv_heads} * attention.head_dim;
  matrix("q", queries, spec_.hidden).rotated_heads = attention.heads;
  matrix("k", keys, spec_.hidden).rotated_heads = attention.kv_heads;
  matrix("v", keys, spec_.hidden);
  output_matrix("o", queries);
  if (attention.qkv_bias) {
    bias("q", queries).rotated_heads = attention.heads;
    bias("k", keys).rotated_heads = attention.kv_heads;
    bias("v", keys);
  }
  if (attention.output_bias) {
    bias("o", spec_.hidden);
  }
  if (attention.qk_norm) {
    norm("q_norm", attention.qk_norm_over_heads ? queries : attention.head_dim, false);
    norm("k_norm", attention.qk_norm_over_heads ? keys : attention.head_dim, false);
  }
  if (spec_.norms.after) {
    norm("attention_post_norm", spec_.hidden, false);
  }
}

void Tensors::add_mlp() {
  if (spec_.mlp.gated) {
    matrix("gate", spec_.ffn, spec_.hidden);
  }
  matrix("up", spec_.ffn, spec_.hidden);
  output_matrix("down", spec_.ffn);
  if (spec_.mlp.bias) {
    if (spec_.mlp.gated) {
      bias("gate", spec_.ffn);
    }
    bias("up", spec_.ffn);
    bias("down", spec_.hidden);
  }
  if (spec_.norms.after) {
    norm("mlp_post_norm", spec_.hidden, false);
  }
}

std::vector<WeightTensor> Tensors::all() {
  const std::int64_t hidden = spec_.hidden;
  const NormSpec& norms = spec_.norms;
  matrix("embedding", spec_.vocab, hidden).deviation = 1.0;
  if (spec_.learned_positions) {
    matrix("positions", spec_.max_context, hidden).deviation = 0.5;
  }
  for (layer_ = 0; layer_ < spec_.layers; ++layer_) {
    if (norms.before) {
      norm("attention_norm", hidden, norms.bias);
    }
    add_attention();
    if (norms.before && !family_of(spec_).one_norm) {
      norm("mlp_norm", hidden, norms.bias);
    }
    add_mlp();
  }
  layer_ = -1;
  norm("final_norm", hidden, norms.bias);
  if (!spec_.tied_embeddings) {
    matrix("output", spec_.vocab, hidden);
  }
  if (spec_.output_bias) {
    bias("output", spec_.vocab);
  }
  return std::move(tensors_);
}

}  // namespace

std::vector<WeightTensor> weight_tensors(const ModelSpec& spec) {
  return Tensors(spec).all();
}

std::vector<float> fuse(const std::vector<std::vector<float>>& parts, std::int64_t columns,
                        std::int64_t groups) {
  std::vector<float> fused;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (const std::vector<float>& part : parts) {
      const std::int64_t rows = std::ssize(part) / columns / groups;
      const auto begin = part.begin() + group * rows * columns;
      fused.insert(fused.end(), begin, begin + rows * columns);
    }
  }
  return fused;
}

std::vector<float> random_weights(const WeightTensor& tensor, std::uint64_t seed,
                                  std::size_t index) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15U + index);
  std::vector<float> weights(static_cast<std::size_t>(tensor.elements()));
  for (float& weight : weights) {
    // The sum of four uniform numbers is nearly normal and equal in every standard library.
    const std::uint64_t bits = random();
    double sum = 0.0;
    for (int shift = 0; shift < 64; shift += 16) {
      sum += (static_cast<double>(bits >> shift & 0xFFFFU) + 0.5) * 0x1.0p-16 - 0.5;
    }
    sum *= std::numbers::sqrt3;  // scales the deviation to 1
    weight = static_cast<float>(tensor.mean + tensor.deviation * sum);
  }
  return weights;
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

std::uint16_t to_f16(float value) {
  const unsigned sign = std::signbit(value) ? 0x8000U : 0U;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0.0) {
    return static_cast<std::uint16_t>(sign);
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);               // magnitude < 2^exponent
  const int unit = std::max(exponent - 11, -24);  // of the last bit
  const auto steps = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // Steps that reach 2048 carry into the exponent.
  const unsigned bits = steps + (static_cast<unsigned>(unit + 24) << 10U);
  return static_cast<std::uint16_t>(sign | std::min(bits, 0x7C00U));
}

}  // namespace protean
