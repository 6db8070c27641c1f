#include "model/checkpoint.h"
#include "model/same_traits_for_test.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/test_data.h"
#include "model/architecture.h"
#include "model/dequantize.h"
#include "tests/checkpoints/checkpoints.h"
#include "tests/checkpoints/family_names.h"
#include "tests/checkpoints/random_weights.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

void expect_same(const ModelSpec& got, const ModelSpec& want) {
  EXPECT_EQ(got.layers, want.layers);
  EXPECT_EQ(got.hidden, want.hidden);
  EXPECT_EQ(got.ffn, want.ffn);
  EXPECT_EQ(got.vocab, want.vocab);
  EXPECT_EQ(got.max_context, want.max_context);
  EXPECT_EQ(got.norm_eps, want.norm_eps);
  EXPECT_EQ(got.tied_embeddings, want.tied_embeddings);
  EXPECT_EQ(got.attention.heads, want.attention.heads);
  EXPECT_EQ(got.attention.kv_heads, want.attention.kv_heads);
  EXPECT_EQ(got.attention.head_dim, want.attention.head_dim);
  EXPECT_EQ(got.attention.qkv_bias, want.attention.qkv_bias);
  EXPECT_EQ(got.attention.output_bias, want.attention.output_bias);
  EXPECT_EQ(got.attention.qk_norm, want.attention.qk_norm);
  EXPECT_EQ(got.attention.sliding_window, want.attention.sliding_window);
  EXPECT_EQ(got.rope.theta, want.rope.theta);
}

struct Tensor {
  NeededTensor need;
  std::vector<float> read;
  std::vector<float> written;  // as f32, in Hugging Face's order
  int rotated_heads = 0;
  bool less_one = false;  // the Hugging Face file has it minus 1
};

// Returns what tests call a tensor.
std::string what_is(TensorRole role, bool one_norm) {
  constexpr std::string_view kNames[] = {"embedding.weight",
                                         "final_norm.weight",
                                         "output.weight",
                                         "attention_norm.weight",
                                         "q.weight",
                                         "k.weight",
                                         "v.weight",
                                         "o.weight",
                                         "q.bias",
                                         "k.bias",
                                         "v.bias",
                                         "o.bias",
                                         "q_norm.weight",
                                         "k_norm.weight",
                                         "mlp_norm.weight",
                                         "gate.weight",
                                         "up.weight",
                                         "down.weight",
                                         "final_norm.bias",
                                         "output.bias",
                                         "positions.weight",
                                         "attention_norm.bias",
                                         "attention_post_norm.weight",
                                         "mlp_norm.bias",
                                         "gate.bias",
                                         "up.bias",
                                         "down.bias",
                                         "mlp_post_norm.weight"};
  std::string name(kNames[static_cast<std::size_t>(role)]);
  return one_norm && name.starts_with("mlp_norm") ? "attention" + name.substr(3) : name;
}

// Compares every tensor of a checkpoint with what was written for the seed.
std::vector<Tensor> compare(const Checkpoint& checkpoint, const ModelSpec& spec) {
  const std::vector<WeightTensor> written = weight_tensors(spec);
  std::vector<Tensor> tensors;
  for (const NeededTensor& need : needed_tensors(checkpoint.spec())) {
    const std::string name = what_is(need.role, family_of(spec).one_norm);
    const auto found =
        std::find_if(written.begin(), written.end(), [&](const WeightTensor& tensor) {
          return tensor.what == name && std::max(tensor.layer, 0) == need.layer;
        });
    if (found == written.end()) {
      ADD_FAILURE() << name << " is needed but was not written";
      continue;
    }
    Tensor tensor{.need = need,
                  .rotated_heads = found->rotated_heads,
                  .less_one = found->is_norm && family_of(spec).norms_less_one};
    tensor.written = random_weights(*found, 1, static_cast<std::size_t>(found - written.begin()));
    tensor.read.resize(tensor.written.size());
    const std::int64_t rows = need.columns == 0 ? 1 : need.rows;
    checkpoint.read_rows(need.role, need.layer, 0, rows, tensor.read.data());
    // A row from the middle is the same on its own.
    const auto row_length = tensor.read.size() / static_cast<std::size_t>(rows);
    std::vector<float> row(row_length);
    checkpoint.read_rows(need.role, need.layer, rows / 2, 1, row.data());
    EXPECT_TRUE(std::equal(
        row.begin(), row.end(),
        tensor.read.begin() +
            static_cast<std::ptrdiff_t>(row_length * static_cast<std::size_t>(rows / 2))));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string message_of(const fs::path& path) {
  const auto checkpoint = open_checkpoint(path);
  if (checkpoint.ok()) {
    ADD_FAILURE() << path << " opens";
    return {};
  }
  EXPECT_EQ(checkpoint.error().message.find('\n'), std::string::npos);
  return checkpoint.error().message;
}

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_file(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

class EveryArchitecture : public testing::TestWithParam<NamedSpec> {};

TEST_P(EveryArchitecture, OpensFromOneSafetensorsFile) {
  const ModelSpec& spec = GetParam().spec;
  const TemporaryDirectory directory;
  write_hf_checkpoint(directory.path(), spec, {.type = SafetensorsType::kF32});
  const auto opened = open_checkpoint(directory.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Checkpoint& checkpoint = **opened;
  expect_same(checkpoint.spec(), spec);
  EXPECT_EQ(checkpoint.spec().architecture, spec.architecture);
  expect_same_family_traits(checkpoint.spec(), spec);
  EXPECT_EQ(checkpoint.spec().rope.pairing, spec.rope.pairing);
  EXPECT_EQ(checkpoint.spec().rope.scaling, spec.rope.scaling);
  EXPECT_EQ(checkpoint.spec().rope.factor, spec.rope.factor);
  EXPECT_EQ(checkpoint.generation().stop_ids, std::vector<TokenId>{2});
  EXPECT_EQ(checkpoint.description(), "safetensors, 1 file, F32");
  for (const Tensor& tensor : compare(checkpoint, spec)) {
    for (std::size_t i = 0; i < tensor.read.size(); ++i) {
      ASSERT_NEAR(tensor.read[i], tensor.written[i], tensor.less_one ? 1e-7F : 0.0F);
    }
  }
}

TEST_P(EveryArchitecture, OpensFromShards) {
  for (const SafetensorsType type : {SafetensorsType::kBf16, SafetensorsType::kF16}) {
    const TemporaryDirectory directory;
    write_hf_checkpoint(directory.path(), GetParam().spec, {.type = type, .shards = 3});
    const auto opened = open_checkpoint(directory.path());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const bool is_bf16 = type == SafetensorsType::kBf16;
    EXPECT_EQ((*opened)->description(),
              is_bf16 ? "safetensors, 3 files, BF16" : "safetensors, 3 files, F16");
    for (const Tensor& tensor : compare(**opened, GetParam().spec)) {
      for (std::size_t i = 0; i < tensor.read.size(); ++i) {
        const float written = tensor.written[i];
        if (tensor.less_one) {
          ASSERT_NEAR(tensor.read[i], written, 0x1.0p-8F);
        } else if (is_bf16) {
          const std::uint32_t bits = std::uint32_t{to_bf16(written)} << 16;
          ASSERT_EQ(tensor.read[i], std::bit_cast<float>(bits));
        } else {
          ASSERT_NEAR(tensor.read[i], written, std::abs(written) * 0x1.0p-11F + 0x1.0p-25F);
        }
      }
    }
  }
}

TEST_P(EveryArchitecture, OpensFromGguf) {
  const ModelSpec& spec = GetParam().spec;
  const Family family = family_of(spec);
  if (!has_gguf(spec)) {
    GTEST_SKIP() << "there are no GGUF files of the family";
  }
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "m.gguf";
  write_gguf_checkpoint(path, spec);
  const auto opened = open_checkpoint(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Checkpoint& checkpoint = **opened;
  expect_same(checkpoint.spec(), spec);
  const bool adjacent = family.gguf_interleaves;
  EXPECT_EQ(checkpoint.spec().architecture, family.gguf == "llama" ? "llama" : spec.architecture);
  EXPECT_EQ(checkpoint.spec().rope.pairing, adjacent ? RopePairing::kAdjacent : spec.rope.pairing);
  if (family.gguf != "llama" && !spec.architecture.starts_with("qwen")) {
    expect_same_family_traits(checkpoint.spec(), spec);
  }
  const bool has_divisors = spec.rope.scaling == RopeScaling::kLlama3;
  EXPECT_EQ(checkpoint.spec().rope.divisors.size(),
            has_divisors ? static_cast<std::size_t>(spec.attention.head_dim / 2)
                         : spec.rope.divisors.size());
  EXPECT_EQ(checkpoint.generation().stop_ids, std::vector<TokenId>{2});
  EXPECT_EQ(checkpoint.description(), "GGUF v3, F32");
  for (const Tensor& tensor : compare(checkpoint, spec)) {
    if (!adjacent || tensor.rotated_heads == 0) {
      EXPECT_EQ(tensor.read, tensor.written);
      continue;
    }
    // Neighbours here are halves there.
    const std::int64_t half = spec.attention.head_dim / 2;
    const std::int64_t width = tensor.need.columns == 0 ? 1 : tensor.need.columns;
    for (std::int64_t row = 0; row < tensor.need.rows; ++row) {
      const std::int64_t in_head = row % (2 * half);
      const std::int64_t from = row - in_head + in_head / 2 + in_head % 2 * half;
      ASSERT_TRUE(std::equal(tensor.read.begin() + row * width,
                             tensor.read.begin() + (row + 1) * width,
                             tensor.written.begin() + from * width));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, EveryArchitecture, testing::ValuesIn(architecture_specs()),
                         [](const auto& spec) { return spec.param.name; });

TEST(Checkpoint, WhatIsNoRegularFileIsRefusedWithoutWaitingForIt) {
  const TemporaryDirectory directory;
  const std::filesystem::path pipe = directory.path() / "model.gguf";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto opened = open_checkpoint(pipe);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().message, pipe.string() + " is not a regular file");
}

TEST(Checkpoint, QuantisedGgufsOpenAndKeepTheirSize) {
  ModelSpec spec = architecture_specs().front().spec;
  spec.hidden = 256;
  spec.ffn = 512;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 64};
  const TemporaryDirectory directory;
  const std::pair<GgufType, const char*> types[] = {
      {GgufType::kF16, "F16"},   {GgufType::kBf16, "BF16"}, {GgufType::kQ8_0, "Q8_0"},
      {GgufType::kQ4_0, "Q4_0"}, {GgufType::kQ4_K, "Q4_K"}, {GgufType::kQ6_K, "Q6_K"}};
  for (const auto& [type, name] : types) {
    const fs::path path = directory.path() / (std::string(name) + ".gguf");
    write_gguf_checkpoint(path, spec, {.type = type});
    const auto opened = open_checkpoint(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ((*opened)->description(), std::string("GGUF v3, ") + name);
    std::vector<float> down(256 * 512);
    (*opened)->read_rows(TensorRole::kDown, 1, 0, 256, down.data());
    double squares = 0.0;
    for (const float weight : down) {
      squares += double{weight} * weight;
    }
    // 1.2 / sqrt(512) by design.
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(down.size())), 0.053, 0.006) << name;
  }
}

TEST(Checkpoint, EveryFiniteF16IsWrittenAsItIsRead) {
  for (unsigned half = 0; half < 65536; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    float value = 0.0F;
    dequantize(TensorType::kF16, reinterpret_cast<const std::byte*>(&bits), 1, &value);
    ASSERT_TRUE(!std::isfinite(value) || to_f16(value) == half) << half;
  }
}

TEST(Checkpoint, TrainedSafetensors) {
  for (const char* name : {"models/tinystories-656k", "models/tinystories-656k-bf16"}) {
    const fs::path path = test_data(name);
    PROTEAN_REQUIRE_DATA(path);
    const auto opened = open_checkpoint(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const ModelSpec& spec = (*opened)->spec();
    EXPECT_EQ(spec.architecture, "llama");
    EXPECT_EQ(spec.layers, 2);
    EXPECT_EQ(spec.vocab, 2048);
    EXPECT_EQ(spec.attention.kv_heads, 4);
    EXPECT_EQ(spec.attention.head_dim, 16);
    EXPECT_EQ(spec.norm_eps, 1e-6F);
    // One has only the output table, the other says it is not tied and has only the embedding.
    EXPECT_TRUE(spec.tied_embeddings);
    EXPECT_EQ((*opened)->generation().stop_ids, std::vector<TokenId>{2});
  }
  // Both are the same model: every f32 is exactly a bf16.
  const auto f32 = open_checkpoint(test_data("models/tinystories-656k"));
  const auto bf16 = open_checkpoint(test_data("models/tinystories-656k-bf16"));
  for (const NeededTensor& need : needed_tensors((*f32)->spec())) {
    const std::int64_t rows = need.columns == 0 ? 1 : need.rows;
    std::vector<float> a(
        static_cast<std::size_t>(need.rows * std::max<std::int64_t>(need.columns, 1)));
    std::vector<float> b(a.size());
    (*f32)->read_rows(need.role, need.layer, 0, rows, a.data());
    (*bf16)->read_rows(need.role, need.layer, 0, rows, b.data());
    EXPECT_EQ(a, b);
  }
}

TEST(Checkpoint, TrainedGguf) {
  const fs::path path = test_data("models/stories260K/stories260Ktok512.gguf");
  PROTEAN_REQUIRE_DATA(path);
  const auto opened = open_checkpoint(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const ModelSpec& spec = (*opened)->spec();
  EXPECT_EQ(spec.layers, 5);
  EXPECT_EQ(spec.hidden, 64);
  EXPECT_EQ(spec.ffn, 172);
  EXPECT_EQ(spec.vocab, 512);
  EXPECT_EQ(spec.max_context, 128);
  EXPECT_EQ(spec.attention.head_dim, 8);
  EXPECT_EQ(spec.rope.pairing, RopePairing::kAdjacent);
  EXPECT_FALSE(spec.tied_embeddings);
  EXPECT_EQ((*opened)->generation().stop_ids, std::vector<TokenId>{2});
  std::vector<float> embedding(512 * 64);
  std::vector<float> output(embedding.size());
  (*opened)->read_rows(TensorRole::kEmbedding, 0, 0, 512, embedding.data());
  (*opened)->read_rows(TensorRole::kOutput, 0, 0, 512, output.data());
  EXPECT_EQ(embedding, output);
}

std::int64_t mapped_file_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) {
      return std::stoll(line.substr(8));
    }
  }
  return -1;
}

TEST(Checkpoint, ReleasedTensorsStopCountingAndCanBeReadAgain) {
  ModelSpec spec = architecture_specs().front().spec;
  spec.hidden = 512;
  spec.vocab = 8192;
  spec.tied_embeddings = true;
  spec.attention = {.heads = 8, .kv_heads = 1, .head_dim = 64};
  const TemporaryDirectory directory;
  write_hf_checkpoint(directory.path(), spec, {.type = SafetensorsType::kF32});
  const auto opened = open_checkpoint(directory.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  std::vector<float> table(8192 * 512);
  std::vector<float> again(table.size());
  (*opened)->read_rows(TensorRole::kEmbedding, 0, 0, 8192, table.data());
  const std::int64_t before = mapped_file_kib();
  (*opened)->release(TensorRole::kEmbedding, 0);
  EXPECT_LT(mapped_file_kib(), before - 14 * 1024);  // of 16 MiB
  (*opened)->read_rows(TensorRole::kEmbedding, 0, 0, 8192, again.data());
  EXPECT_EQ(table, again);
}

TEST(Checkpoint, PathsThatAreNoModel) {
  const TemporaryDirectory directory;
  const fs::path& path = directory.path();
  EXPECT_NE(message_of(path / "none").find("cannot be found"), std::string::npos);
  EXPECT_NE(message_of(path).find("has no config.json: give the directory"), std::string::npos);
  write_file(path / "a.gguf", "GGUF");
  EXPECT_NE(message_of(path).find("a.gguf itself"), std::string::npos);
  EXPECT_NE(message_of(path / "a.gguf").find("truncated"), std::string::npos);
  write_file(path / "empty.gguf", "");
  EXPECT_NE(message_of(path / "empty.gguf").find("truncated"), std::string::npos);
  write_file(path / "w.bin", "x");
  EXPECT_NE(message_of(path / "w.bin").find("pickles"), std::string::npos);
  write_file(path / "w.safetensors", "x");
  EXPECT_NE(message_of(path / "w.safetensors").find("give the directory"), std::string::npos);
  write_file(path / "w.txt", "some text");
  EXPECT_NE(message_of(path / "w.txt").find("not a GGUF file"), std::string::npos);
  EXPECT_NE(message_of("/dev/null").find("not a regular file"), std::string::npos);
}

// A good directory, what is done to it, and what must be said about it.
struct Damage {
  const char* name;
  std::function<void(const fs::path&)> damage;
  const char* said;
  int shards = 1;
};

class DamagedDirectory : public testing::TestWithParam<Damage> {};

TEST_P(DamagedDirectory, IsRefusedByName) {
  const TemporaryDirectory directory;
  write_hf_checkpoint(directory.path(), architecture_specs().front().spec,
                      {.shards = GetParam().shards});
  GetParam().damage(directory.path());
  const std::string message = message_of(directory.path());
  EXPECT_NE(message.find(GetParam().said), std::string::npos) << message;
}

std::function<void(const fs::path&)> replace(const char* file, std::string from, std::string to) {
  return [=](const fs::path& path) {
    std::string text = read_file(path / file);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    write_file(path / file, text);
  };
}

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSecondShard = "model-00002-of-00002.safetensors";

INSTANTIATE_TEST_SUITE_P(
    Config, DamagedDirectory,
    testing::Values(
        Damage{"config_is_broken", [](const fs::path& p) { write_file(p / "config.json", "{"); },
               "config.json: its JSON is broken"},
        Damage{"config_is_empty", [](const fs::path& p) { write_file(p / "config.json", ""); },
               "config.json: its JSON is broken"},
        Damage{"config_is_deep",
               [](const fs::path& p) {
                 write_file(p / "config.json", "{\"a\":" + std::string(100000, '['));
               },
               "config.json: its JSON is broken"},
        Damage{"generation_is_broken",
               [](const fs::path& p) { write_file(p / "generation_config.json", "[]"); },
               "generation_config.json: its JSON is not an object"},
        Damage{"architecture", replace("config.json", "LlamaForCausalLM", "LlamaForXyz"),
               "the nearest supported one is LlamaForCausalLM"},
        Damage{"config_of_another_model",
               replace("config.json", "\"intermediate_size\":104", "\"intermediate_size\":112"),
               "shape [104, 48] where the config needs [112, 48]"},
        Damage{"more_layers",
               replace("config.json", "\"num_hidden_layers\":2", "\"num_hidden_layers\":4"),
               "tensor model.layers.2.input_layernorm.weight is missing"},
        Damage{"bias_not_there",
               replace("config.json", "\"vocab_size\"", "\"attention_bias\":true,\"vocab_size\""),
               "tensor model.layers.0.self_attn.q_proj.bias is missing"}),
    [](const auto& damage) { return damage.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Weights, DamagedDirectory,
    testing::Values(
        Damage{"no_weights", [](const fs::path& p) { fs::remove(p / "model.safetensors"); },
               "has no model.safetensors"},
        Damage{
            "pickles_only",
            [](const fs::path& p) { fs::rename(p / "model.safetensors", p / "pytorch_model.bin"); },
            "convert them to safetensors"},
        Damage{"truncated",
               [](const fs::path& p) { fs::resize_file(p / "model.safetensors", 20000); },
               "model.safetensors: tensor"},
        Damage{"weights_are_a_folder",
               [](const fs::path& p) {
                 fs::remove(p / "model.safetensors");
                 fs::create_directory(p / "model.safetensors");
               },
               "not a regular file"},
        Damage{"integer_weights", replace("model.safetensors", "\"BF16\"", "\"I16\" "),
               "is of type I16, which is not supported"},
        Damage{"renamed", replace("model.safetensors", "model.norm.weight", "model.nurm.weight"),
               "tensor model.norm.weight is missing"},
        Damage{"shard_is_missing", [](const fs::path& p) { fs::remove(p / kSecondShard); },
               "cannot open", 2},
        Damage{"shard_is_truncated",
               [](const fs::path& p) { fs::resize_file(p / kSecondShard, 5000); },
               "00002-of-00002.safetensors: tensor", 2},
        Damage{"index_forgets", replace(kIndex, "model.norm.weight", "model.nurm.weight"),
               "index.json: tensor model.norm.weight is missing", 2},
        Damage{"index_lies",
               replace(kIndex, "\"model.norm.weight\":\"model-00002-of",
                       "\"model.norm.weight\":\"model-00001-of"),
               "00001-of-00002.safetensors: tensor model.norm.weight is missing", 2},
        Damage{"index_leads_elsewhere",
               replace(kIndex, "\"model.norm.weight\":\"", "\"model.norm.weight\":\"../"),
               "no .safetensors file in its folder", 2},
        Damage{"index_names_numbers",
               [](const fs::path& p) { write_file(p / kIndex, R"({"weight_map":{"a":1}})"); },
               "no .safetensors file in its folder", 2},
        Damage{"index_is_empty", [](const fs::path& p) { write_file(p / kIndex, "{}"); },
               "has no \"weight_map\"", 2}),
    [](const auto& damage) { return damage.param.name; });

TEST(Checkpoint, ExtraTensorsAndOddlyNamedSingleFilesAreFine) {
  const TemporaryDirectory directory;
  const ModelSpec spec = architecture_specs().front().spec;
  write_hf_checkpoint(directory.path(), spec);
  // lm_head.weight under another name: it becomes an extra tensor and the model a tied one.
  replace("model.safetensors", "lm_head.weight", "rotary.invfreq")(directory.path());
  fs::rename(directory.path() / "model.safetensors", directory.path() / "weights.safetensors");
  const auto tied = open_checkpoint(directory.path());
  ASSERT_TRUE(tied.ok()) << tied.error().message;
  EXPECT_TRUE((*tied)->spec().tied_embeddings);
}

}  // namespace
}  // namespace protean
