#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numbers>
#include <random>
#include <set>
#include <utility>

#include "base/check.h"
#include "tests/checkpoints/checkpoints.h"
#include "tests/checkpoints/family_names.h"
#include "tests/checkpoints/gguf_writer.h"
#include "tests/checkpoints/random_weights.h"

namespace protean {
namespace {

constexpr std::uint32_t kF32Number = 0;

// A type of ggml: its number, the elements and bytes of a block, and the offsets of its f16 scales.
// `deviation` is the standard deviation of a block of random bytes with scale 1.
struct BlockLayout {
  std::uint32_t number = 0;
  std::int64_t elements = 1;
  std::int64_t bytes = 4;
  int scale_at = -1;
  int minimum_at = -1;
  double deviation = 1.0;
  double minimum_per_scale = 0.0;  // gives a mean of about 0
};

BlockLayout layout_of(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return {};
    case GgufType::kF16:
      return {.number = 1, .bytes = 2};
    case GgufType::kBf16:
      return {.number = 30, .bytes = 2};
    case GgufType::kQ8_0:
      return {.number = 8, .elements = 32, .bytes = 34, .scale_at = 0, .deviation = 74.0};
    case GgufType::kQ4_0:
      return {.number = 2, .elements = 32, .bytes = 18, .scale_at = 0, .deviation = 4.6};
    case GgufType::kQ4_K:
      return {.number = 12,
              .elements = 256,
              .bytes = 144,
              .scale_at = 0,
              .minimum_at = 2,
              .deviation = 257.0,
              .minimum_per_scale = 7.5};
    case GgufType::kQ6_K:
      return {
          .number = 14, .elements = 256, .bytes = 210, .scale_at = 208, .deviation = 74.0 * 18.5};
  }
  return {};
}

// Returns the Hugging Face row of row r of a GGUF llama model: the pairs that rotate together are
// halves of a head in one and neighbours in the other.
std::vector<float> interleave_halves(const std::vector<float>& weights, int heads,
                                     std::int64_t columns) {
  const std::int64_t head_dim = static_cast<std::int64_t>(weights.size()) / columns / heads;
  std::vector<float> ordered;
  ordered.reserve(weights.size());
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t row = 0; row < head_dim; ++row) {
      const std::int64_t from = head * head_dim + row / 2 + row % 2 * (head_dim / 2);
      const auto begin = weights.begin() + from * columns;
      ordered.insert(ordered.end(), begin, begin + columns);
    }
  }
  return ordered;
}

std::string plain_data(const std::vector<float>& weights, GgufType type) {
  std::string data;
  for (const float weight : weights) {
    const std::uint16_t half = type == GgufType::kF16 ? to_f16(weight) : to_bf16(weight);
    if (type == GgufType::kF32) {
      data.append(reinterpret_cast<const char*>(&weight), sizeof(weight));
    } else {
      data.append(reinterpret_cast<const char*>(&half), sizeof(half));
    }
  }
  return data;
}

std::string random_blocks(const WeightTensor& tensor, const BlockLayout& layout,
                          std::mt19937_64& random) {
  std::string data(static_cast<std::size_t>(tensor.elements() / layout.elements * layout.bytes),
                   '\0');
  for (char& byte : data) {
    byte = static_cast<char>(random());
  }
  for (std::size_t at = 0; at < data.size(); at += static_cast<std::size_t>(layout.bytes)) {
    const double scale = tensor.deviation / layout.deviation;
    const std::uint16_t half = to_f16(static_cast<float>(scale));
    std::memcpy(&data[at + static_cast<std::size_t>(layout.scale_at)], &half, sizeof(half));
    if (layout.minimum_at >= 0) {
      const std::uint16_t minimum = to_f16(static_cast<float>(scale * layout.minimum_per_scale));
      std::memcpy(&data[at + static_cast<std::size_t>(layout.minimum_at)], &minimum,
                  sizeof(minimum));
    }
  }
  return data;
}

// Returns the divisors of the pairs' frequencies by Llama 3's scaling.
std::vector<float> llama3_divisors(const RopeSpec& rope, int head_dim) {
  std::vector<float> divisors;
  for (int i = 0; i < head_dim; i += 2) {
    const double wavelength =
        2.0 * std::numbers::pi * std::pow(rope.theta, static_cast<double>(i) / head_dim);
    const double turns = rope.original_context / wavelength;
    double divisor = 1.0;
    if (turns < rope.low_freq_factor) {
      divisor = rope.factor;
    } else if (turns <= rope.high_freq_factor) {
      const double smooth =
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      divisor = 1.0 / ((1.0 - smooth) / rope.factor + smooth);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

GgufType type_of(const WeightTensor& tensor, const ModelSpec& spec,
                 const GgufCheckpointOptions& options) {
  if (!options.more) {
    return options.type;
  }
  if (!tensor.gguf_name.starts_with("blk.")) {
    const std::string_view output = spec.tied_embeddings ? "token_embd.weight" : "output.weight";
    return tensor.gguf_name == output ? *options.more : options.type;
  }
  const int layer = std::atoi(tensor.gguf_name.c_str() + std::strlen("blk."));
  const int eighth = spec.layers / 8;
  const bool more_bits =
      layer < eighth || layer >= 7 * spec.layers / 8 || (layer - eighth) % 3 == 2;
  const bool counts =
      tensor.gguf_name.ends_with("attn_v.weight") || tensor.gguf_name.ends_with("ffn_down.weight");
  return more_bits && counts ? *options.more : options.type;
}

void add_family_metadata(const ModelSpec& spec, const std::string& arch, GgufWriter& writer) {
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", arch, name); };
  const RopeSpec& rope = spec.rope;
  if (rope.scaling == RopeScaling::kYarn || rope.scaling == RopeScaling::kLong) {
    writer.add(key("rope.scaling.original_context_length"),
               static_cast<std::uint32_t>(rope.original_context));
  }
  if (rope.scaling == RopeScaling::kYarn) {
    writer.add(key("rope.scaling.type"), std::string_view("yarn"));
    writer.add(key("rope.scaling.factor"), static_cast<float>(rope.factor));
  }
  if (rope.scaling == RopeScaling::kLong) {
    writer.add(key("rope.scaling.attn_factor"), static_cast<float>(rope.magnitude));
  }
  const Multipliers& multipliers = spec.multipliers;
  if (arch == "gemma2") {
    writer.add(key("attn_logit_softcapping"), spec.attention.score_cap);
    writer.add(key("final_logit_softcapping"), multipliers.logit_cap);
  }
  if (arch == "granite") {
    writer.add(key("embedding_scale"), multipliers.embedding);
    writer.add(key("residual_scale"), multipliers.residual);
    writer.add(key("logit_scale"), 1.0F / multipliers.logits);
    writer.add(key("attention.scale"), spec.attention.scale);
  }
  if (arch == "cohere2" || arch == "command-r") {
    writer.add(key("logit_scale"), multipliers.logits);
  }
}

void add_metadata(const ModelSpec& spec, const std::string& arch, GgufWriter& writer) {
  const AttentionSpec& attention = spec.attention;
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", arch, name); };
  const auto u32 = [](int value) { return static_cast<std::uint32_t>(value); };
  writer.add("general.architecture", arch);
  writer.add(key("block_count"), u32(spec.layers));
  writer.add(key("context_length"), u32(spec.max_context));
  writer.add(key("embedding_length"), u32(spec.hidden));
  writer.add(key("feed_forward_length"), u32(spec.ffn));
  writer.add(key("attention.head_count"), u32(attention.heads));
  writer.add(key("attention.head_count_kv"), u32(attention.kv_heads));
  writer.add(key(spec.norms.layer_norm ? "attention.layer_norm_epsilon"
                                       : "attention.layer_norm_rms_epsilon"),
             spec.norm_eps);
  writer.add(key("rope.freq_base"), static_cast<float>(spec.rope.theta));
  writer.add(key("rope.dimension_count"),
             u32(spec.rope.rotated > 0 ? spec.rope.rotated : attention.head_dim));
  if (attention.heads * attention.head_dim != spec.hidden) {
    writer.add(key("attention.key_length"), u32(attention.head_dim));
    writer.add(key("attention.value_length"), u32(attention.head_dim));
  }
  if (attention.sliding_window > 0) {
    writer.add(key("attention.sliding_window"), u32(attention.sliding_window));
  }
  if (spec.rope.scaling == RopeScaling::kLinear) {
    writer.add(key("rope.scaling.type"), std::string_view("linear"));
    writer.add(key("rope.scaling.factor"), static_cast<float>(spec.rope.factor));
  }
  add_family_metadata(spec, arch, writer);
}

void add_vocabulary(const ModelSpec& spec, GgufWriter& writer) {
  constexpr int kFirstByte = 3;
  constexpr int kFirstPiece = kFirstByte + 256;
  check(spec.vocab >= kFirstPiece, "an embedded vocabulary needs 259 pieces");
  const std::string space = "\xE2\x96\x81";  // SentencePiece's mark for a space
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(6);
  }
  const std::vector<std::string> pieces = {space, "t",  "h",           "e",        "a",
                                           "o",   "n",  "th",          "the",      "he",
                                           "an",  "on", space + "the", space + "a"};
  for (int id = kFirstPiece; id < spec.vocab; ++id) {
    const auto piece = static_cast<std::size_t>(id - kFirstPiece);
    tokens.push_back(piece < pieces.size() ? pieces[piece] : fmt::format("{}w{}", space, id));
    types.push_back(1);
  }
  std::vector<float> scores(tokens.size(), 0.0F);
  for (std::size_t id = kFirstPiece; id < scores.size(); ++id) {
    // Longer pieces merge last; SentencePiece scores are negative ranks.
    scores[id] = -static_cast<float>(id - kFirstPiece);
  }
  writer.add("tokenizer.ggml.model", std::string_view("llama"));
  writer.add("tokenizer.ggml.tokens", tokens);
  writer.add("tokenizer.ggml.scores", scores);
  writer.add("tokenizer.ggml.token_type", types);
  writer.add("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  writer.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
}

}  // namespace

void write_gguf_checkpoint(const std::filesystem::path& path, const ModelSpec& spec,
                           const GgufCheckpointOptions& options) {
  const Family family = family_of(spec);
  check(!family.gguf.empty(), "GGUF files of the family exist");
  GgufWriter writer;
  add_metadata(spec, family.gguf, writer);
  if (options.vocabulary) {
    add_vocabulary(spec, writer);
  } else {
    writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  }
  if (spec.rope.scaling == RopeScaling::kLlama3) {
    const std::vector<float> divisors = llama3_divisors(spec.rope, spec.attention.head_dim);
    writer.add_tensor("rope_freqs.weight", {divisors.size()}, kF32Number,
                      plain_data(divisors, GgufType::kF32));
  }
  if (spec.rope.scaling == RopeScaling::kLong) {
    for (const auto& [name, factors] :
         {std::pair("short", &spec.rope.divisors), std::pair("long", &spec.rope.long_divisors)}) {
      writer.add_tensor(fmt::format("rope_factors_{}.weight", name), {factors->size()}, kF32Number,
                        plain_data(*factors, GgufType::kF32));
    }
  }
  std::mt19937_64 random(options.seed);
  const std::vector<WeightTensor> tensors = weight_tensors(spec);
  std::set<std::string> written;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const WeightTensor& tensor = tensors[i];
    if (!written.insert(tensor.gguf_name).second) {
      continue;  // fused with an earlier one
    }
    const GgufType matrix_type = type_of(tensor, spec, options);
    const BlockLayout layout = layout_of(matrix_type);
    const auto columns = static_cast<std::uint64_t>(tensor.columns);
    std::vector<std::vector<float>> parts;
    WeightTensor whole = tensor;
    whole.rows = 0;
    for (std::size_t part = i; part < tensors.size(); ++part) {
      if (tensors[part].gguf_name == tensor.gguf_name) {
        whole.rows += tensors[part].rows;
        parts.push_back(random_weights(tensors[part], options.seed, part));
        const int heads = tensors[part].rotated_heads;
        if (family.gguf_interleaves && heads > 0) {
          parts.back() =
              interleave_halves(parts.back(), heads, tensor.rows == 0 ? 1 : tensor.columns);
        }
      }
    }
    if (layout.scale_at >= 0 && tensor.rows != 0 && tensor.columns % layout.elements == 0) {
      writer.add_tensor(tensor.gguf_name, {columns, static_cast<std::uint64_t>(whole.rows)},
                        layout.number, random_blocks(whole, layout, random));
      continue;
    }
    const std::vector<float> weights = fuse(parts, tensor.rows == 0 ? 1 : tensor.columns);
    const bool is_plain = tensor.rows != 0 && layout.scale_at < 0;
    const GgufType type = is_plain ? matrix_type : GgufType::kF32;
    std::vector<std::uint64_t> dimensions = {weights.size()};
    if (tensor.rows != 0) {
      dimensions = {columns, weights.size() / columns};
    }
    writer.add_tensor(tensor.gguf_name, dimensions, layout_of(type).number,
                      plain_data(weights, type));
  }
  const std::string bytes = writer.file();
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  check(file.good(), "tests can write their checkpoints");
}

}  // namespace protean
