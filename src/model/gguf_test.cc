#include "model/gguf.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/test_data.h"
#include "tests/checkpoints/gguf_writer.h"

namespace protean {
namespace {

Result<GgufFile> parse(const std::string& bytes) {
  return GgufFile::parse(std::as_bytes(std::span(bytes)), "m.gguf");
}

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string text(std::string_view value) {
  return raw<std::uint64_t>(value.size()) + std::string(value);
}

// Returns magic, version and counts. The test appends the rest.
std::string header(std::uint64_t tensors, std::uint64_t values, std::uint32_t version = 3) {
  return "GGUF" + raw(version) + raw(tensors) + raw(values);
}

std::string tensor_info(std::string_view name, const std::vector<std::uint64_t>& dimensions,
                        std::uint32_t type, std::uint64_t offset) {
  std::string info = text(name) + raw(static_cast<std::uint32_t>(dimensions.size()));
  for (const std::uint64_t dimension : dimensions) {
    info += raw(dimension);
  }
  return info + raw(type) + raw(offset);
}

std::string padded(std::string bytes, std::size_t data_bytes) {
  bytes.resize((bytes.size() + 31) / 32 * 32);
  return bytes + std::string(data_bytes, '\x01');
}

GgufWriter small_file(std::uint32_t version = 3) {
  GgufWriter writer(version);
  writer.add("text", std::string_view("h\xC3\xA9"));
  writer.add("count", std::uint32_t{7});
  writer.add("ratio", 2.5F);
  writer.add("flag", true);
  const std::int8_t minus = -3;
  writer.scalar("minus", 1, &minus, sizeof(minus));
  const std::uint64_t huge = ~std::uint64_t{0};
  writer.scalar("huge", 10, &huge, sizeof(huge));
  const double pi = 3.125;
  writer.scalar("double", 12, &pi, sizeof(pi));
  writer.add("words", std::vector<std::string>{"a", "", "ccc"});
  writer.add("floats", std::vector<float>{0.5F, -1.0F});
  writer.add("ints", std::vector<std::int32_t>{-1, 2});
  writer.add("none", std::vector<std::string>{});
  writer.add_tensor("matrix", {2, 3}, 0, std::string(24, '\x01'));
  writer.add_tensor("quants", {64}, 8, std::string(68, '\x02'));
  return writer;
}

TEST(Gguf, ScalarsAndArraysByType) {
  const std::string bytes = small_file().file();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->find_string("text").value(), "h\xC3\xA9");
  EXPECT_EQ(file->find_integer("count").value(), 7);
  EXPECT_EQ(file->find_integer("minus").value(), -3);
  EXPECT_EQ(file->find_number("ratio").value(), 2.5);
  EXPECT_EQ(file->find_number("double").value(), 3.125);
  EXPECT_EQ(file->find_number("count").value(), 7.0);
  EXPECT_EQ(file->find_bool("flag").value(), true);
  EXPECT_EQ(*file->strings("words"), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_EQ(*file->floats("floats"), (std::vector<float>{0.5F, -1.0F}));
  EXPECT_EQ(*file->integers("ints"), (std::vector<std::int64_t>{-1, 2}));
  EXPECT_TRUE(file->strings("none")->empty());
  EXPECT_TRUE(file->has("none"));
}

TEST(Gguf, AbsentKeysAreNothingAndWrongTypesAreErrors) {
  const std::string bytes = small_file().file();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->find_integer("absent").value(), std::nullopt);
  EXPECT_EQ(file->find_string("absent").value(), std::nullopt);
  EXPECT_TRUE(file->floats("absent")->empty());
  EXPECT_FALSE(file->has("absent"));
  EXPECT_FALSE(file->find_integer("text").ok());
  EXPECT_FALSE(file->find_integer("ints").ok());
  EXPECT_FALSE(file->find_integer("ratio").ok());
  EXPECT_FALSE(file->find_integer("huge").ok());
  EXPECT_FALSE(file->find_number("flag").ok());
  EXPECT_FALSE(file->find_bool("count").ok());
  EXPECT_FALSE(file->find_string("words").ok());
  EXPECT_FALSE(file->strings("text").ok());
  EXPECT_FALSE(file->strings("ints").ok());
  EXPECT_FALSE(file->floats("ints").ok());
  EXPECT_FALSE(file->integers("floats").ok());
  EXPECT_FALSE(file->integers("count").ok());
  EXPECT_EQ(
      file->find_integer("text").error().message,
      "m.gguf: metadata \"text\" is string, not an integer below 2^63: convert the model again");
}

TEST(Gguf, TensorsOfBothVersions) {
  for (const std::uint32_t version : {2U, 3U}) {
    const std::string bytes = small_file(version).file();
    const auto file = parse(bytes);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->version(), static_cast<int>(version));
    const GgufTensor* matrix = file->find_tensor("matrix");
    ASSERT_NE(matrix, nullptr);
    EXPECT_EQ(matrix->dimensions, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(matrix->bytes.size(), 24U);
    EXPECT_EQ(matrix->bytes.front(), std::byte{1});
    EXPECT_EQ(file->find_tensor("quants")->bytes.size(), 68U);
    EXPECT_EQ(file->find_tensor("quants")->bytes.back(), std::byte{2});
  }
}

TEST(Gguf, AlignmentComesFromTheMetadata) {
  for (const std::uint32_t alignment : {8U, 64U, 4096U}) {
    GgufWriter writer(3, alignment);
    writer.add("general.alignment", alignment);
    writer.add_tensor("a", {1}, 0, std::string(4, '\x05'));
    writer.add_tensor("b", {1}, 0, std::string(4, '\x06'));
    const std::string bytes = writer.file();
    const auto file = parse(bytes);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->find_tensor("b")->bytes.front(), std::byte{6});
  }
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string bytes = small_file().file();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto file = parse(bytes.substr(0, size));
    ASSERT_FALSE(file.ok()) << size << " of " << bytes.size() << " bytes";
    EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(file.error().message.rfind("m.gguf", 0), 0U);
  }
}

TEST(Gguf, ChangedBytesNeverCrash) {
  const std::string bytes = small_file().file();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int bits : {0xFF, 0x01, 0x80}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ bits);
      const auto file = parse(changed);
      if (file.ok()) {
        (void)file->strings("words");
        (void)file->integers("ints");
      }
    }
  }
}

struct Lie {
  const char* name;
  std::function<std::string()> bytes;
  const char* said;  // in the message
};

class LyingGguf : public testing::TestWithParam<Lie> {};

TEST_P(LyingGguf, IsRefused) {
  const auto file = parse(GetParam().bytes());
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find(GetParam().said), std::string::npos) << file.error().message;
  EXPECT_EQ(file.error().message.find('\n'), std::string::npos) << file.error().message;
}

constexpr std::uint64_t kHuge = ~std::uint64_t{0};

std::string with_alignment(std::uint32_t value) {
  return header(0, 1) + text("general.alignment") + raw<std::uint32_t>(4) + raw(value);
}

INSTANTIATE_TEST_SUITE_P(
    Header, LyingGguf,
    testing::Values(
        Lie{"magic", [] { return std::string("GGML") + std::string(40, '\0'); }, "not a GGUF"},
        Lie{"version_1", [] { return header(0, 0, 1); }, "version 1 is not supported"},
        Lie{"version_4", [] { return header(0, 0, 4); }, "version 4 is not supported"},
        Lie{"big_endian", [] { return header(0, 0, 0x03000000); }, "big-endian"},
        Lie{"huge_tensor_count", [] { return header(kHuge, 0) + std::string(99, '\0'); }, "claims"},
        Lie{"huge_value_count", [] { return header(0, kHuge) + std::string(99, '\0'); }, "claims"},
        Lie{"huge_key", [] { return header(0, 1) + raw(kHuge) + std::string(99, 'k'); },
            "at most 65535"},
        Lie{"key_past_the_end",
            [] { return header(0, 1) + raw<std::uint64_t>(60000) + std::string(99, 'k'); },
            "truncated"}),
    [](const auto& lie) { return lie.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Metadata, LyingGguf,
    testing::Values(
        Lie{"unknown_type",
            [] {
              return header(0, 1) + text("k") + raw<std::uint32_t>(13) + std::string(64, '\0');
            },
            "unknown type 13"},
        Lie{"huge_type", [] { return header(0, 1) + text("k") + raw(~0U) + std::string(64, '\0'); },
            "unknown type 4294967295"},
        Lie{"huge_string",
            [] { return header(0, 1) + text("k") + raw<std::uint32_t>(8) + raw(kHuge) + "abc"; },
            "claims 18446744073709551615 bytes"},
        Lie{"nested_array",
            [] {
              return header(0, 1) + text("k") + raw<std::uint32_t>(9) + raw<std::uint32_t>(9) +
                     raw<std::uint64_t>(1) + std::string(64, '\0');
            },
            "array of arrays"},
        Lie{"array_of_unknown",
            [] {
              return header(0, 1) + text("k") + raw<std::uint32_t>(9) + raw<std::uint32_t>(99) +
                     raw<std::uint64_t>(0) + std::string(64, '\0');
            },
            "unknown type 99"},
        Lie{"huge_array",
            [] {
              return header(0, 1) + text("k") + raw<std::uint32_t>(9) + raw<std::uint32_t>(6) +
                     raw(kHuge / 2) + std::string(64, '\0');
            },
            "more than the file holds"},
        Lie{"array_bytes_overflow",
            [] {
              return header(0, 1) + text("k") + raw<std::uint32_t>(9) + raw<std::uint32_t>(12) +
                     raw(std::uint64_t{1} << 61) + std::string(64, '\0');
            },
            "more than the file holds"},
        Lie{"huge_string_array",
            [] {
              return header(0, 1) + text("k") + raw<std::uint32_t>(9) + raw<std::uint32_t>(8) +
                     raw(kHuge) + std::string(64, '\0');
            },
            "truncated"},
        Lie{"key_twice",
            [] {
              const std::string value = text("k\n") + raw<std::uint32_t>(7) + std::string(1, '\1');
              return header(0, 2) + value + value;
            },
            R"("k\x0a" is there twice)"},
        Lie{"alignment_0", [] { return with_alignment(0); }, "power of two"},
        Lie{"alignment_24", [] { return with_alignment(24); }, "power of two"},
        Lie{"alignment_text",
            [] {
              return header(0, 1) + text("general.alignment") + raw<std::uint32_t>(8) + text("32");
            },
            "not an integer"}),
    [](const auto& lie) { return lie.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Tensors, LyingGguf,
    testing::Values(
        Lie{"five_dimensions",
            [] {
              return padded(header(1, 0) + tensor_info("t", {1, 1, 1, 1, 1}, 0, 0), 64);
            },
            "5 dimensions"},
        Lie{"dimensions_2_32",
            [] { return header(1, 0) + text("t") + raw(~0U) + std::string(64, '\0'); },
            "4294967295 dimensions"},
        Lie{"negative_dimension",
            [] { return padded(header(1, 0) + tensor_info("t", {kHuge}, 0, 0), 64); },
            "dimension of 18446744073709551615"},
        Lie{"product_overflows",
            [] {
              const std::uint64_t size = std::uint64_t{1} << 32;
              return padded(header(1, 0) + tensor_info("t", {size, size}, 0, 0), 64);
            },
            "impossible size"},
        Lie{"bytes_overflow",
            [] {
              return padded(header(1, 0) + tensor_info("t", {std::uint64_t{1} << 62}, 0, 0), 64);
            },
            "impossible size"},
        Lie{"partial_block",
            [] { return padded(header(1, 0) + tensor_info("t", {33}, 8, 0), 128); }, "whole Q8_0"},
        Lie{"past_the_end", [] { return padded(header(1, 0) + tensor_info("t", {17}, 0, 0), 64); },
            "needs 68 bytes at 0 of 64"},
        Lie{"offset_past_the_end",
            [] { return padded(header(1, 0) + tensor_info("t", {1}, 0, 96), 64); }, "truncated"},
        Lie{"offset_overflows",
            [] { return padded(header(1, 0) + tensor_info("t", {1}, 0, kHuge - 31), 64); },
            "truncated"},
        Lie{"offset_unaligned",
            [] { return padded(header(1, 0) + tensor_info("t", {1}, 0, 4), 64); },
            "not a multiple of the alignment 32"},
        Lie{"unknown_type_past_the_end",
            [] { return padded(header(1, 0) + tensor_info("t", {1}, 77, 96), 64); }, "truncated"},
        Lie{"name_twice",
            [] {
              return padded(
                  header(2, 0) + tensor_info("t", {1}, 0, 0) + tensor_info("t", {1}, 0, 32), 64);
            },
            "\"t\" is there twice"},
        Lie{"overlap",
            [] {
              return padded(
                  header(2, 0) + tensor_info("a", {9}, 0, 0) + tensor_info("b", {1}, 0, 32), 64);
            },
            "\"a\" and \"b\" overlap"},
        Lie{"no_data", [] { return header(1, 0) + tensor_info("t", {1}, 0, 0); }, "truncated"}),
    [](const auto& lie) { return lie.param.name; });

TEST(Gguf, RealVocabulariesOpen) {
  for (const char* name : {"ggml-vocab-llama-spm.gguf", "ggml-vocab-gpt-2.gguf"}) {
    const auto path = test_data(std::string("tokenizers/llama.cpp-vocab/") + name);
    PROTEAN_REQUIRE_DATA(path);
    const auto file = GgufFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_GT(file->strings("tokenizer.ggml.tokens")->size(), 30000U);
    EXPECT_EQ(file->strings("tokenizer.ggml.tokens")->size(),
              file->integers("tokenizer.ggml.token_type")->size());
  }
}

}  // namespace
}  // namespace protean
