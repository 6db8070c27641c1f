// Matrices whose codes are stored row after row: FP8 and compressed-tensors checkpoints.

#include <gtest/gtest.h>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>

#include "model/checkpoint.h"
#include "model/packed_codes.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr std::int64_t kRows = 64;  // of each matrix of the model below but down_proj
constexpr std::int64_t kInputs = 64;

// The value of each code by IEEE's rules for 4 exponent and 3 mantissa bits.
TEST(Float8, EveryCodeHasItsValue) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const double fraction = (code & 7) / 8.0;
    double value = exponent == 0 ? std::pow(2.0, -6) * fraction
                                 : std::pow(2.0, exponent - 7) * (1.0 + fraction);
    value = code >= 128 ? -value : value;
    const float read = float8_value(static_cast<std::uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(read)) << code;
    } else {
      EXPECT_EQ(read, value) << code;
    }
  }
  EXPECT_EQ(float8_value(0x7e), 448.0F);
  EXPECT_EQ(float8_value(0x38), 1.0F);
}

// A safetensors file of named tensors.
class TensorBytes {
 public:
  void add(const std::string& name, const std::string& type, std::vector<std::int64_t> shape,
           std::string bytes) {
    header_[name] =
        json::object{{"dtype", type},
                     {"shape", json::array(shape.begin(), shape.end())},
                     {"data_offsets", json::array{data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
  }
  void write(const fs::path& path) const {
    const std::string header = json::serialize(header_);
    std::string length;
    for (int i = 0; i < 8; ++i) {
      length += static_cast<char>(header.size() >> (8 * i) & 0xff);
    }
    std::ofstream(path, std::ios::binary) << length << header << data_;
  }

 private:
  json::object header_;
  std::string data_;
};

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A matrix that is to be made.
struct ToMake {
  TensorBytes& file;
  std::string stem;
  std::int64_t rows;
  std::int64_t inputs;
  std::mt19937& random;
};

// One way to store the matrices of a model: the config, and the tensors of a matrix with the
// weights that they stand for.
struct Scheme {
  std::string name;
  std::string config;
  std::function<std::vector<float>(const ToMake&)> add;
  std::optional<int> kept_bits;  // of integers that are used unchanged
};

float random_scale(std::mt19937& random) {
  return static_cast<float>(random() % 1000 + 1) / 16384.0F;
}

// Adds FP8 codes with a scale for each block of weights; a block of 0 covers all.
std::vector<float> add_float8(const ToMake& made, std::int64_t block,
                              const std::string& scale_name) {
  const auto& [file, stem, rows, inputs, random] = made;
  const std::int64_t height = block == 0 ? rows : block;
  const std::int64_t width = block == 0 ? inputs : block;
  const std::int64_t across = (inputs + width - 1) / width;
  std::vector<float> scales;
  for (std::int64_t i = 0; i < (rows + height - 1) / height * across; ++i) {
    scales.push_back(random_scale(random));
  }
  std::string codes;
  std::vector<float> weights;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t input = 0; input < inputs; ++input) {
      const auto code = static_cast<std::uint8_t>(random() % 0x7f | (random() % 2) << 7);
      codes += static_cast<char>(code);
      const auto scale = static_cast<std::size_t>(row / height * across + input / width);
      weights.push_back(float8_value(code) * scales[scale]);
    }
  }
  file.add(stem + ".weight", "F8_E4M3", {rows, inputs}, codes);
  if (block == 0) {
    file.add(stem + scale_name, "F32", {}, raw(scales));
  } else {
    file.add(stem + scale_name, "F32", {(rows + height - 1) / height, across}, raw(scales));
  }
  return weights;
}

std::vector<float> add_int8(const ToMake& made) {
  const auto& [file, stem, rows, inputs, random] = made;
  std::string codes;
  std::vector<float> scales;
  std::vector<float> weights;
  for (std::int64_t row = 0; row < rows; ++row) {
    scales.push_back(random_scale(random));
    for (std::int64_t input = 0; input < inputs; ++input) {
      const int code = static_cast<int>(random() % 256) - 128;
      codes += static_cast<char>(code);
      weights.push_back(static_cast<float>(code) * scales.back());
    }
  }
  file.add(stem + ".weight", "I8", {rows, inputs}, codes);
  file.add(stem + ".weight_scale", "F32", {rows, 1}, raw(scales));
  return weights;
}

// Packs 4-bit integers, the lowest bits first, as signed numbers plus 8.
std::vector<float> add_packed(const ToMake& made, bool zeros) {
  const auto& [file, stem, rows, inputs, random] = made;
  constexpr std::int64_t kGroup = 32;
  const std::int64_t groups = inputs / kGroup;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(rows * inputs / 8));
  std::vector<std::uint32_t> zero_words(static_cast<std::size_t>(rows / 8 * groups));
  std::vector<float> scales;
  std::vector<int> zero;
  for (std::int64_t i = 0; i < rows * groups; ++i) {
    scales.push_back(random_scale(random));
    zero.push_back(zeros ? static_cast<int>(random() % 16) - 8 : 0);
    const auto word = static_cast<std::size_t>(i / groups / 8 * groups + i % groups);
    zero_words[word] |= static_cast<std::uint32_t>(zero.back() + 8) << (i / groups % 8 * 4);
  }
  std::vector<float> weights;
  for (std::int64_t i = 0; i < rows * inputs; ++i) {
    const int code = static_cast<int>(random() % 16) - 8;
    words[static_cast<std::size_t>(i / 8)] |= static_cast<std::uint32_t>(code + 8) << (i % 8 * 4);
    const auto group = static_cast<std::size_t>(i / inputs * groups + i % inputs / kGroup);
    weights.push_back(static_cast<float>(code - zero[group]) * scales[group]);
  }
  file.add(stem + ".weight_packed", "I32", {rows, inputs / 8}, raw(words));
  file.add(stem + ".weight_scale", "F32", {rows, groups}, raw(scales));
  file.add(stem + ".weight_shape", "I64", {2}, raw(std::vector<std::int64_t>{rows, inputs}));
  if (zeros) {
    file.add(stem + ".weight_zero_point", "I32", {rows / 8, groups}, raw(zero_words));
  }
  return weights;
}

std::string compressed(const std::string& format, const std::string& weights) {
  return R"({"quant_method":"compressed-tensors","format":")" + format +
         R"(","ignore":["lm_head"],"config_groups":{"group_0":{"targets":["Linear"],"weights":)" +
         weights + "}}}";
}

std::vector<Scheme> schemes() {
  return {
      {"fp8_blocks", R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[48,48]})",
       [](const ToMake& made) { return add_float8(made, 48, ".weight_scale_inv"); }, std::nullopt},
      {"fp8_tensor", R"({"quant_method":"fp8","activation_scheme":"static"})",
       [](const ToMake& made) { return add_float8(made, 0, ".weight_scale"); }, std::nullopt},
      {"float_quantized",
       compressed("float-quantized", R"({"num_bits":8,"type":"float","strategy":"tensor"})"),
       [](const ToMake& made) { return add_float8(made, 0, ".weight_scale"); }, std::nullopt},
      {"w8a8", compressed("int-quantized", R"({"num_bits":8,"type":"int","strategy":"channel"})"),
       [](const ToMake& made) { return add_int8(made); }, 8},
      {"w4a16",
       compressed("pack-quantized",
                  R"({"num_bits":4,"type":"int","strategy":"group","group_size":32})"),
       [](const ToMake& made) { return add_packed(made, false); }, 4},
      {"w4a16_zeros",
       compressed(
           "pack-quantized",
           R"({"num_bits":4,"type":"int","strategy":"group","group_size":32,"symmetric":false})"),
       [](const ToMake& made) { return add_packed(made, true); }, 4},
  };
}

std::string plain(std::int64_t elements, std::mt19937& random) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    values.push_back(random_scale(random));
  }
  return raw(values);
}

// Writes a Llama of one layer, and returns the weights of its matrices by role.
std::map<TensorRole, std::vector<float>> write_model(const Scheme& scheme, const fs::path& folder) {
  std::mt19937 random(11);
  TensorBytes file;
  std::map<TensorRole, std::vector<float>> weights;
  const std::string layer = "model.layers.0.";
  const std::pair<TensorRole, std::string> matrices[] = {
      {TensorRole::kQuery, "self_attn.q_proj"}, {TensorRole::kKey, "self_attn.k_proj"},
      {TensorRole::kValue, "self_attn.v_proj"}, {TensorRole::kAttentionOutput, "self_attn.o_proj"},
      {TensorRole::kGate, "mlp.gate_proj"},     {TensorRole::kUp, "mlp.up_proj"},
      {TensorRole::kDown, "mlp.down_proj"}};
  for (const auto& [role, name] : matrices) {
    weights[role] = scheme.add({file, layer + name, kRows, kInputs, random});
  }
  file.add("model.embed_tokens.weight", "F32", {32, kInputs}, plain(32 * kInputs, random));
  file.add("lm_head.weight", "F32", {32, kInputs}, plain(32 * kInputs, random));
  for (const std::string& norm :
       {std::string("model.norm"), layer + "input_layernorm", layer + "post_attention_layernorm"}) {
    file.add(norm + ".weight", "F32", {kInputs}, plain(kInputs, random));
  }
  file.write(folder / "model.safetensors");
  std::ofstream(folder / "config.json")
      << R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":64,)"
         R"("num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4,"vocab_size":32,)"
         R"("max_position_embeddings":64,"rms_norm_eps":1e-5,"tie_word_embeddings":false,)"
         R"("quantization_config":)"
      << scheme.config << "}";
  return weights;
}

TEST(RowCodes, CheckpointsAreReadAsTheirFormatsSay) {
  for (const Scheme& scheme : schemes()) {
    const TemporaryDirectory folder;
    const auto written = write_model(scheme, folder.path());
    const auto checkpoint = open_checkpoint(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << scheme.name << ": " << checkpoint.error().message;
    for (const auto& [role, weights] : written) {
      std::vector<float> read(weights.size());
      (*checkpoint)->read_rows(role, 0, 0, kRows, read.data());
      ASSERT_EQ(read, weights) << scheme.name << " " << name_of(role);
      std::vector<float> some(static_cast<std::size_t>(3 * kInputs));
      (*checkpoint)->read_rows(role, 0, 50, 3, some.data());
      ASSERT_TRUE(std::equal(some.begin(), some.end(), weights.begin() + 50 * kInputs));
      const auto format = (*checkpoint)->stored_format(role, 0);
      ASSERT_EQ(format.has_value(), scheme.kept_bits.has_value()) << scheme.name;
      if (!format) {
        continue;
      }
      EXPECT_EQ(format->bits, *scheme.kept_bits);
      const QuantizedMatrix stored = (*checkpoint)->read_stored_rows(role, 0, 0, kRows);
      dequantize_rows(stored.view(), 0, kRows, read.data());
      for (std::size_t i = 0; i < read.size(); ++i) {
        ASSERT_NEAR(read[i], weights[i], 1e-5) << scheme.name;
      }
    }
    const Precision served = (*checkpoint)->spec().stored.precision;
    EXPECT_EQ(served, scheme.kept_bits == 4 ? Precision::kW4 : Precision::kW8) << scheme.name;
  }
}

TEST(RowCodes, OtherFormsAreRefused) {
  const auto complaint = [](const std::string& config) {
    Scheme scheme = schemes()[3];
    scheme.config = config;
    const TemporaryDirectory folder;
    write_model(scheme, folder.path());
    const auto checkpoint = open_checkpoint(folder.path());
    return checkpoint.ok() ? std::string("accepted") : checkpoint.error().message;
  };
  const std::pair<std::string, const char*> cases[] = {
      {compressed("marlin-24", "{}"), "in format \"marlin-24\" are not supported"},
      {compressed("int-quantized", R"({"num_bits":4,"type":"int"})"), "with 4 bits"},
      {compressed("pack-quantized", R"({"num_bits":3,"type":"int"})"), "with 3 bits"},
      {compressed("int-quantized", R"({"num_bits":8,"symmetric":false})"), "zero points"},
      {compressed("int-quantized", R"({"num_bits":8,"strategy":"token"})"), "strategy \"token\""},
      {R"({"quant_method":"compressed-tensors","format":"int-quantized","config_groups":{}})",
       "with 0 groups"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "format \"e5m2\""},
      {R"({"quant_method":"fp8","weight_block_size":[128]})", "two numbers above 0"},
      {R"({"quant_method":"fp8"})", "q_proj.weight is I8"},
      {compressed("int-quantized", R"({"num_bits":8,"strategy":"tensor"})"),
       "weight_scale is F32 of shape [64, 1] where the config needs floats of [1, 1]"},
  };
  for (const auto& [config, says] : cases) {
    EXPECT_NE(complaint(config).find(says), std::string::npos) << complaint(config);
  }
}

}  // namespace
}  // namespace protean
