#include "tests/checkpoints/random_weights.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <numbers>
#include <random>

namespace protean {
namespace {

constexpr double kGain = 1.2;
constexpr double kNormDeviation = 0.2;
constexpr double kBiasDeviation = 0.3;

WeightTensor matrix(std::string hf, std::string gguf, std::int64_t rows, std::int64_t columns) {
  return {.hf_name = std::move(hf),
          .gguf_name = std::move(gguf),
          .rows = rows,
          .columns = columns,
          .deviation = kGain / std::sqrt(static_cast<double>(columns))};
}

WeightTensor vector(std::string hf, std::string gguf, std::int64_t size, bool is_norm) {
  return {.hf_name = std::move(hf),
          .gguf_name = std::move(gguf),
          .columns = size,
          .mean = is_norm ? 1.0 : 0.0,
          .deviation = is_norm ? kNormDeviation : kBiasDeviation};
}

void add_attention(const ModelSpec& spec, int layer, std::vector<WeightTensor>& tensors) {
  const AttentionSpec& attention = spec.attention;
  const std::string hf = fmt::format("model.layers.{}.self_attn.", layer);
  const std::string gguf = fmt::format("blk.{}.attn_", layer);
  const std::int64_t queries = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t keys = std::int64_t{attention.kv_heads} * attention.head_dim;
  tensors.push_back(matrix(hf + "q_proj.weight", gguf + "q.weight", queries, spec.hidden));
  tensors.back().rotated_heads = attention.heads;
  tensors.push_back(matrix(hf + "k_proj.weight", gguf + "k.weight", keys, spec.hidden));
  tensors.back().rotated_heads = attention.kv_heads;
  tensors.push_back(matrix(hf + "v_proj.weight", gguf + "v.weight", keys, spec.hidden));
  tensors.push_back(matrix(hf + "o_proj.weight", gguf + "output.weight", spec.hidden, queries));
  if (attention.qkv_bias) {
    tensors.push_back(vector(hf + "q_proj.bias", gguf + "q.bias", queries, false));
    tensors.back().rotated_heads = attention.heads;
    tensors.push_back(vector(hf + "k_proj.bias", gguf + "k.bias", keys, false));
    tensors.back().rotated_heads = attention.kv_heads;
    tensors.push_back(vector(hf + "v_proj.bias", gguf + "v.bias", keys, false));
  }
  if (attention.output_bias) {
    tensors.push_back(vector(hf + "o_proj.bias", gguf + "output.bias", spec.hidden, false));
  }
  if (attention.qk_norm) {
    tensors.push_back(
        vector(hf + "q_norm.weight", gguf + "q_norm.weight", attention.head_dim, true));
    tensors.push_back(
        vector(hf + "k_norm.weight", gguf + "k_norm.weight", attention.head_dim, true));
  }
}

}  // namespace

std::vector<WeightTensor> weight_tensors(const ModelSpec& spec) {
  const std::int64_t hidden = spec.hidden;
  std::vector<WeightTensor> tensors;
  tensors.push_back(matrix("model.embed_tokens.weight", "token_embd.weight", spec.vocab, hidden));
  tensors.back().deviation = 1.0;
  for (int layer = 0; layer < spec.layers; ++layer) {
    const std::string hf = fmt::format("model.layers.{}.", layer);
    const std::string gguf = fmt::format("blk.{}.", layer);
    tensors.push_back(
        vector(hf + "input_layernorm.weight", gguf + "attn_norm.weight", hidden, true));
    add_attention(spec, layer, tensors);
    tensors.push_back(
        vector(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", hidden, true));
    tensors.push_back(
        matrix(hf + "mlp.gate_proj.weight", gguf + "ffn_gate.weight", spec.ffn, hidden));
    tensors.push_back(matrix(hf + "mlp.up_proj.weight", gguf + "ffn_up.weight", spec.ffn, hidden));
    tensors.push_back(
        matrix(hf + "mlp.down_proj.weight", gguf + "ffn_down.weight", hidden, spec.ffn));
  }
  tensors.push_back(vector("model.norm.weight", "output_norm.weight", hidden, true));
  if (!spec.tied_embeddings) {
    tensors.push_back(matrix("lm_head.weight", "output.weight", spec.vocab, hidden));
  }
  return tensors;
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
