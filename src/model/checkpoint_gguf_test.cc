#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>

#include "base/log.h"
#include "model/checkpoint.h"
#include "model/dequantize.h"
#include "tests/checkpoints/checkpoints.h"
#include "tests/checkpoints/gguf_writer.h"

namespace protean {
namespace {

// The smallest model as a GGUF file, in pieces that a test can change before it is written.
struct Pieces {
  struct Tensor {
    std::vector<std::uint64_t> dimensions;
    std::uint32_t type = 0;
  };
  std::map<std::string, std::uint32_t> integers = {
      {"llama.block_count", 1},          {"llama.context_length", 64},
      {"llama.embedding_length", 32},    {"llama.feed_forward_length", 24},
      {"llama.attention.head_count", 4}, {"llama.attention.head_count_kv", 2}};
  std::map<std::string, float> floats = {{"llama.attention.layer_norm_rms_epsilon", 1e-5F}};
  std::map<std::string, std::string> texts = {{"general.architecture", "llama"}};
  std::map<std::string, Tensor> tensors = {
      {"token_embd.weight", {{32, 40}}},        {"output_norm.weight", {{32}}},
      {"blk.0.attn_norm.weight", {{32}}},       {"blk.0.attn_q.weight", {{32, 32}}},
      {"blk.0.attn_k.weight", {{32, 16}}},      {"blk.0.attn_v.weight", {{32, 16}}},
      {"blk.0.attn_output.weight", {{32, 32}}}, {"blk.0.ffn_norm.weight", {{32}}},
      {"blk.0.ffn_gate.weight", {{32, 24}}},    {"blk.0.ffn_up.weight", {{32, 24}}},
      {"blk.0.ffn_down.weight", {{24, 32}}}};

  Result<std::unique_ptr<Checkpoint>> open() const {
    GgufWriter writer;
    for (const auto& [key, value] : integers) {
      writer.add(key, value);
    }
    for (const auto& [key, value] : floats) {
      writer.add(key, value);
    }
    for (const auto& [key, value] : texts) {
      writer.add(key, std::string_view(value));
    }
    for (const auto& [name, tensor] : tensors) {
      const GgmlType* type = find_ggml_type(tensor.type);
      const BlockFormat format =
          type == nullptr ? BlockFormat{.name = {}, .bytes = 4} : type->format;
      std::size_t elements = 1;
      for (const std::uint64_t dimension : tensor.dimensions) {
        elements *= dimension;
      }
      const auto bytes = elements / static_cast<std::size_t>(format.elements) *
                         static_cast<std::size_t>(format.bytes);
      writer.add_tensor(name, tensor.dimensions, tensor.type, std::string(bytes, '\x3F'));
    }
    const TemporaryDirectory directory;
    std::ofstream(directory.path() / "m.gguf", std::ios::binary) << writer.file();
    return open_checkpoint(directory.path() / "m.gguf");
  }
};

ModelSpec spec_after(const std::function<void(Pieces&)>& change) {
  Pieces pieces;
  change(pieces);
  const auto checkpoint = pieces.open();
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  return checkpoint.ok() ? (*checkpoint)->spec() : ModelSpec{};
}

TEST(GgufCheckpoint, Defaults) {
  const ModelSpec spec = spec_after([](Pieces&) {});
  EXPECT_EQ(spec.vocab, 40);
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_EQ(spec.rope.scaling, RopeScaling::kNone);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_FALSE(spec.attention.qkv_bias);
  EXPECT_EQ(spec.attention.sliding_window, 0);
  EXPECT_EQ(spec_after([](Pieces& p) {
              p.integers.erase("llama.attention.head_count_kv");
              p.tensors["blk.0.attn_k.weight"].dimensions = {32, 32};
              p.tensors["blk.0.attn_v.weight"].dimensions = {32, 32};
            }).attention.kv_heads,
            4);
}

// Numbers of ggml's types.
constexpr std::uint32_t kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ8_0 = 8;

StoredWeights stored_as(const std::vector<std::uint32_t>& types) {
  return spec_after([&](Pieces& pieces) {
           pieces.integers["llama.feed_forward_length"] = 32;
           std::size_t next = 0;
           for (auto& [name, tensor] : pieces.tensors) {
             if (name.starts_with("blk.") && tensor.dimensions.size() == 2) {
               tensor = {{32, tensor.dimensions[1] == 24 ? 32 : tensor.dimensions[1]},
                         types[next++ % types.size()]};
             }
           }
         })
      .stored;
}

TEST(GgufCheckpoint, LayersAreKeptInTheBitsThatHoldAllOfThem) {
  EXPECT_EQ(stored_as({kQ4_0}).precision, Precision::kW4);
  EXPECT_EQ(stored_as({kQ4_0, kQ4_1}).precision, Precision::kW4);
  EXPECT_EQ(stored_as({kQ8_0}).precision, Precision::kW8);
  EXPECT_EQ(stored_as({kQ4_0, kQ5_0}).precision, Precision::kW8);
  EXPECT_EQ(stored_as({kQ4_0, kF16}).precision, Precision::kBf16);
  EXPECT_EQ(stored_as({kQ4_0}).group, 32);
  EXPECT_EQ(stored_as({kF16}).group, 128);
}

TEST(GgufCheckpoint, EachHalfIsKeptInTheBitsThatHoldItsMatrices) {
  ModelSpec spec;
  spec.layers = 8;
  spec.hidden = 256;
  spec.ffn = 256;
  spec.vocab = 64;
  spec.max_context = 64;
  spec.architecture = "llama";
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 64};
  const TemporaryDirectory directory;
  const auto stored = [&](GgufType type, GgufType more) {
    write_gguf_checkpoint(directory.path() / "m.gguf", spec, {.type = type, .more = more});
    const auto checkpoint = open_checkpoint(directory.path() / "m.gguf");
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    return (*checkpoint)->spec().stored;
  };
  const StoredWeights q4_k_m = stored(GgufType::kQ4_K, GgufType::kQ6_K);
  EXPECT_EQ(q4_k_m.precision, Precision::kW8);
  EXPECT_EQ(q4_k_m.group, 32);
  constexpr LayerPrecision kFour = {Precision::kW4, Precision::kW4};
  constexpr LayerPrecision kEight = {Precision::kW8, Precision::kW8};
  EXPECT_EQ(q4_k_m.layers, (std::vector<LayerPrecision>{kEight, kFour, kFour, kEight, kFour, kFour,
                                                        kEight, kEight}));
  const StoredWeights beside_f16 = stored(GgufType::kQ4_0, GgufType::kF16);
  EXPECT_EQ(beside_f16.precision, Precision::kBf16);
  EXPECT_EQ(beside_f16.layers[1], kFour);
  EXPECT_TRUE(stored(GgufType::kQ8_0, GgufType::kQ6_K).layers.empty()) << "8 bits hold both";
  // One half of one layer.
  const std::vector<LayerPrecision> one = stored_as({kQ4_0, kQ4_0, kQ4_0, kQ4_0, kQ8_0}).layers;
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0], (LayerPrecision{Precision::kW4, Precision::kW8}));
}

TEST(GgufCheckpoint, BiasesAreThereWhenTheirTensorsAre) {
  const ModelSpec spec = spec_after([](Pieces& p) {
    p.tensors["blk.0.attn_q.bias"] = {{32}};
    p.tensors["blk.0.attn_k.bias"] = {{16}};
    p.tensors["blk.0.attn_v.bias"] = {{16}};
  });
  EXPECT_TRUE(spec.attention.qkv_bias);
  EXPECT_FALSE(spec.attention.output_bias);
  EXPECT_TRUE(spec_after([](Pieces& p) {
                p.tensors["blk.0.attn_output.bias"] = {{32}};
              }).attention.output_bias);
}

TEST(GgufCheckpoint, RopeOfAllSpellings) {
  const RopeSpec scaled = spec_after([](Pieces& p) {
                            p.texts["llama.rope.scaling.type"] = "linear";
                            p.floats["llama.rope.scaling.factor"] = 4.0F;
                            p.floats["llama.rope.freq_base"] = 5e5F;
                          }).rope;
  EXPECT_EQ(scaled.scaling, RopeScaling::kLinear);
  EXPECT_EQ(scaled.factor, 4.0);
  EXPECT_EQ(scaled.theta, 5e5);
  EXPECT_EQ(spec_after([](Pieces& p) { p.floats["llama.rope.scale_linear"] = 2.0F; }).rope.factor,
            2.0);
  EXPECT_EQ(spec_after([](Pieces& p) { p.texts["llama.rope.scaling.type"] = "none"; }).rope.scaling,
            RopeScaling::kNone);
  const RopeSpec divided =
      spec_after([](Pieces& p) { p.tensors["rope_freqs.weight"] = {{4}}; }).rope;
  EXPECT_EQ(divided.divisors.size(), 4U);
  EXPECT_GT(divided.divisors.front(), 0.0F);
}

TEST(GgufCheckpoint, StopIdsAreThoseTheVocabularyHas) {
  Pieces pieces;
  pieces.integers["tokenizer.ggml.eos_token_id"] = 2;
  pieces.integers["tokenizer.ggml.eot_token_id"] = 7;
  pieces.integers["tokenizer.ggml.eom_token_id"] = 0xFFFFFFFFU;
  const auto checkpoint = pieces.open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->generation().stop_ids, (std::vector<TokenId>{2, 7}));
}

struct Refusal {
  const char* name;
  std::function<void(Pieces&)> change;
  const char* said;
};

// Writes the smallest model in two parts: the first has the metadata and some tensors.
void write_parts(const std::filesystem::path& directory, bool twice) {
  Pieces pieces;
  for (const int part : {0, 1}) {
    GgufWriter writer;
    writer.add("split.count", std::uint32_t{2});
    writer.add("split.no", static_cast<std::uint32_t>(part));
    if (part == 0) {
      for (const auto& [key, value] : pieces.integers) {
        writer.add(key, value);
      }
      writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
      writer.add("general.architecture", std::string_view("llama"));
    }
    for (const auto& [name, tensor] : pieces.tensors) {
      const bool first = !name.starts_with("blk.0.ffn") || (twice && name == "blk.0.ffn_up.weight");
      if (first == (part == 0) || (twice && name == "blk.0.ffn_up.weight")) {
        std::size_t elements = 1;
        for (const std::uint64_t dimension : tensor.dimensions) {
          elements *= dimension;
        }
        writer.add_tensor(name, tensor.dimensions, tensor.type,
                          std::string(4 * elements, part == 0 ? '\x3F' : '\x3E'));
      }
    }
    const std::string name = part == 0 ? "m-00001-of-00002.gguf" : "m-00002-of-00002.gguf";
    std::ofstream(directory / name, std::ios::binary) << writer.file();
  }
}

TEST(GgufCheckpoint, PartsAreReadTogether) {
  const TemporaryDirectory directory;
  write_parts(directory.path(), false);
  const auto checkpoint = open_checkpoint(directory.path() / "m-00001-of-00002.gguf");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  std::vector<float> row(32);
  (*checkpoint)->read_rows(TensorRole::kQuery, 0, 3, 1, row.data());
  EXPECT_EQ(row.front(), std::bit_cast<float>(0x3F3F3F3FU));
  (*checkpoint)->read_rows(TensorRole::kUp, 0, 3, 1, row.data());
  EXPECT_EQ(row.front(), std::bit_cast<float>(0x3E3E3E3EU));
}

TEST(GgufCheckpoint, MissingAndRepeatedPartsAreNamed) {
  const TemporaryDirectory directory;
  const auto message = [&](const char* file) {
    const auto checkpoint = open_checkpoint(directory.path() / file);
    EXPECT_FALSE(checkpoint.ok());
    return checkpoint.ok() ? std::string() : checkpoint.error().message;
  };
  write_parts(directory.path(), true);
  EXPECT_NE(message("m-00001-of-00002.gguf").find("an earlier part has tensor"), std::string::npos);
  EXPECT_NE(message("m-00002-of-00002.gguf").find("is part 2 of 2: give the part"),
            std::string::npos);
  std::filesystem::remove(directory.path() / "m-00002-of-00002.gguf");
  EXPECT_NE(message("m-00001-of-00002.gguf").find("part 2 of 2: "), std::string::npos);
}

TEST(GgufCheckpoint, LayersThatItsConfigLeavesOutAreAWarning) {
  log::set_level(log::Level::kWarning);
  Pieces pieces;
  const auto logged = [&] {
    testing::internal::CaptureStderr();
    EXPECT_TRUE(pieces.open().ok());
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(logged().find("not used"), std::string::npos);
  pieces.tensors["blk.1.attn_norm.weight"] = {{32}};
  const std::string line = logged();
  EXPECT_NE(line.find("m.gguf: its weights from layer 1 on are not used: the model's config has 1 "
                      "layers"),
            std::string::npos)
      << line;
}

class RefusedGguf : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedGguf, SaysWhy) {
  Pieces pieces;
  GetParam().change(pieces);
  const auto checkpoint = pieces.open();
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_NE(checkpoint.error().message.find(GetParam().said), std::string::npos)
      << checkpoint.error().message;
  EXPECT_NE(checkpoint.error().message.find("m.gguf"), std::string::npos)
      << checkpoint.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Metadata, RefusedGguf,
    testing::Values(
        Refusal{
            "architecture", [](Pieces& p) { p.texts["general.architecture"] = "gemma"; },
            "\"gemma\" is not supported: the nearest supported one is gemma2, and all are llama, "},
        Refusal{"no_architecture", [](Pieces& p) { p.texts.clear(); },
                "metadata general.architecture is missing: convert the model again"},
        Refusal{"architecture_number",
                [](Pieces& p) {
                  p.texts.clear();
                  p.integers["general.architecture"] = 1;
                },
                "not a string"},
        Refusal{"no_layers", [](Pieces& p) { p.integers.erase("llama.block_count"); },
                "llama.block_count is missing"},
        Refusal{"layers_text",
                [](Pieces& p) {
                  p.integers.erase("llama.block_count");
                  p.texts["llama.block_count"] = "1";
                },
                "is string, not an integer"},
        Refusal{"zero_heads", [](Pieces& p) { p.integers["llama.attention.head_count"] = 0; },
                "no multiple of head_count 0"},
        Refusal{"huge_heads",
                [](Pieces& p) { p.integers["llama.attention.head_count"] = 0xFFFFFFFFU; },
                "is 4294967295"},
        Refusal{"value_length", [](Pieces& p) { p.integers["llama.attention.value_length"] = 16; },
                "keys of 8 and values of 16"},
        Refusal{"empty_heads",
                [](Pieces& p) {
                  p.integers["llama.attention.key_length"] = 0;
                  p.tensors["rope_freqs.weight"] = {{0}};
                },
                "head dimension is 0"},
        Refusal{"experts", [](Pieces& p) { p.integers["llama.expert_count"] = 8; },
                "mixture of experts"},
        Refusal{"split", [](Pieces& p) { p.integers["split.count"] = 3; },
                "is part 1 of 3: give the part that is named like NAME-00001-of-00003.gguf"},
        Refusal{"partial_rotation", [](Pieces& p) { p.integers["llama.rope.dimension_count"] = 5; },
                "rotated elements of a head is 5"},
        Refusal{"unknown_scaling",
                [](Pieces& p) {
                  p.texts["llama.rope.scaling.type"] = "3d";
                  p.floats["llama.rope.scaling.factor"] = 4.0F;
                },
                "\"3d\" is not supported"},
        Refusal{"negative_scaling", [](Pieces& p) { p.floats["llama.rope.scale_linear"] = -1.0F; },
                "above 0"},
        Refusal{"theta_nan",
                [](Pieces& p) {
                  p.floats["llama.rope.freq_base"] = std::numeric_limits<float>::quiet_NaN();
                },
                "not finite"},
        Refusal{"stop_id_text", [](Pieces& p) { p.texts["tokenizer.ggml.eos_token_id"] = "</s>"; },
                "not an integer"}),
    [](const auto& refusal) { return refusal.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Tensors, RefusedGguf,
    testing::Values(
        Refusal{"no_embedding", [](Pieces& p) { p.tensors.erase("token_embd.weight"); },
                "token_embd.weight is missing"},
        Refusal{"flat_embedding",
                [](Pieces& p) { p.tensors["token_embd.weight"].dimensions = {32}; },
                "token_embd.weight is missing or no table"},
        Refusal{"narrow_embedding",
                [](Pieces& p) {
                  p.tensors["token_embd.weight"].dimensions = {16, 40};
                },
                "shape [40, 16] where the config needs [40, 32]"},
        Refusal{"no_tensors", [](Pieces& p) { p.tensors.clear(); }, "token_embd.weight"},
        Refusal{"missing", [](Pieces& p) { p.tensors.erase("blk.0.ffn_up.weight"); },
                "tensor blk.0.ffn_up.weight is missing"},
        Refusal{"transposed",
                [](Pieces& p) {
                  p.tensors["blk.0.ffn_down.weight"].dimensions = {32, 24};
                },
                "blk.0.ffn_down.weight has shape [24, 32] where the config needs [32, 24]"},
        Refusal{"key_bias_missing", [](Pieces& p) { p.tensors["blk.0.attn_q.bias"] = {{32}}; },
                "tensor blk.0.attn_k.bias is missing"},
        Refusal{"mlp_bias", [](Pieces& p) { p.tensors["blk.0.ffn_up.bias"] = {{24}}; },
                "tensor blk.0.ffn_gate.bias is missing"},
        Refusal{"iq3_s",
                [](Pieces& p) {
                  p.tensors["blk.0.ffn_norm.weight"] = {{256}, 21};
                },
                "of type IQ3_S, which is not supported"},
        Refusal{"unknown_type", [](Pieces& p) { p.tensors["blk.0.ffn_norm.weight"].type = 77; },
                "of type number 77"},
        Refusal{"divisors", [](Pieces& p) { p.tensors["rope_freqs.weight"] = {{5}}; },
                "rope_freqs.weight is not 4 F32 numbers"}),
    [](const auto& refusal) { return refusal.param.name; });

}  // namespace
}  // namespace protean
