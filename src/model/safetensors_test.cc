#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/test_data.h"

namespace protean {
namespace {

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return bytes + header + std::string(data_bytes, '\x3F');
}

Result<SafetensorsFile> read_header(const std::string& bytes) {
  return SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "m.safetensors");
}

constexpr const char* kTwoTensors =
    R"({"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},
        "a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";

TEST(Safetensors, NamesTypesShapesAndBytes) {
  const std::string bytes = file_of(kTwoTensors, 14);
  const auto file = read_header(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 2U);
  const SafetensorsTensor* b = file->find_tensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, "BF16");
  EXPECT_EQ(b->shape, (std::vector<std::int64_t>{3}));
  EXPECT_EQ(b->bytes.size(), 6U);
  EXPECT_EQ(reinterpret_cast<const char*>(b->bytes.data()), bytes.data() + bytes.size() - 6);
  EXPECT_EQ(file->find_tensor("c"), nullptr);
}

TEST(Safetensors, ScalarsEmptyTensorsAndTypesOfTheFutureAreFine) {
  const auto file = read_header(file_of(
      R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},
          "e":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},
          "f":{"dtype":"F4_E9","shape":[7],"data_offsets":[8,11]}})",
      11));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 3U);
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string bytes = file_of(kTwoTensors, 14);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto file = read_header(bytes.substr(0, size));
    ASSERT_FALSE(file.ok()) << size << " of " << bytes.size() << " bytes";
    EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(file.error().message.rfind("m.safetensors", 0), 0U);
  }
}

TEST(Safetensors, ChangedBytesNeverCrash) {
  const std::string bytes = file_of(kTwoTensors, 14);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int bit : {1, 8, 128}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ bit);
      const auto file = read_header(changed);
      if (!file.ok()) {
        EXPECT_FALSE(file.error().message.empty());
      }
    }
  }
}

struct HeaderLie {
  const char* name;
  const char* header;
  std::size_t data_bytes;
  const char* said;  // in the message
};

class LyingSafetensors : public testing::TestWithParam<HeaderLie> {};

TEST_P(LyingSafetensors, IsRefused) {
  const auto file = read_header(file_of(GetParam().header, GetParam().data_bytes));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(file.error().message.find(GetParam().said), std::string::npos) << file.error().message;
  EXPECT_EQ(file.error().message.find('\n'), std::string::npos) << file.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Table, LyingSafetensors,
    testing::Values(
        HeaderLie{"empty_header", "", 0, "JSON"}, HeaderLie{"not_json", "{\"a\":", 4, "JSON"},
        HeaderLie{"an_array", "[1]", 0, "not an object"},
        HeaderLie{"trailing_text", "{}{}", 0, "JSON"},
        HeaderLie{"tensor_is_a_number", R"({"a":5})", 0, "tensor \"a\" has no \"dtype\""},
        HeaderLie{"no_shape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "\"shape\""},
        HeaderLie{"dtype_is_a_number", R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", 4,
                  "\"dtype\""},
        HeaderLie{"shape_is_text", R"({"a":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", 4,
                  "\"shape\""},
        HeaderLie{"negative_shape", R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
                  "\"shape\""},
        HeaderLie{"fractional_shape", R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
                  4, "\"shape\""},
        HeaderLie{"one_offset", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}})", 4,
                  "\"data_offsets\""},
        HeaderLie{"three_offsets", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4,
                  "\"data_offsets\""},
        HeaderLie{"backwards", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
                  "claims"},
        HeaderLie{"past_the_end", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4,
                  "truncated"},
        HeaderLie{
            "far_past_the_end",
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[9223372036854775803,9223372036854775807]}})",
            4, "truncated"},
        HeaderLie{"beyond_63_bits",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4,
                  "\"data_offsets\""},
        HeaderLie{"shape_too_small", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8,
                  "shape [1] need"},
        HeaderLie{"shape_overflows",
                  R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  0, "shape"},
        HeaderLie{"shape_overflows_to_fit",
                  R"({"a":{"dtype":"I8","shape":[4294967297,4294967297],"data_offsets":[0,1]}})", 1,
                  "shape"},
        HeaderLie{"same_name_twice",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
                  4, "twice"},
        HeaderLie{"same_name_twice_escaped",
                  R"({"a:\"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "\u0061:\"":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
                  4, "twice"},
        HeaderLie{"overlap",
                  R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  8, "overlaps"},
        HeaderLie{"identical_ranges",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  4, "overlaps"},
        HeaderLie{"hole",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                  12, "hole"},
        HeaderLie{"bytes_left_over", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5,
                  "after its last tensor"},
        HeaderLie{"newline_in_a_name", R"({"a\nb":3})", 0, R"("a\x0ab")"}),
    [](const auto& lie) { return lie.param.name; });

TEST(Safetensors, HeaderLengthsAreBounded) {
  for (const std::uint64_t length :
       {std::uint64_t{1}, std::uint64_t{100'000'001}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    EXPECT_FALSE(read_header(bytes).ok()) << length;
  }
}

TEST(Safetensors, LongNamesOfAnyAlphabetAreCutInMessages) {
  const std::string name = std::string(99, 'x') + "\xC3\xA9" + std::string(10000, 'y');
  const auto file = read_header(file_of("{\"" + name + "\":1}", 0));
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("xx\\xc3\"... has no"), std::string::npos)
      << file.error().message;
}

TEST(Safetensors, NestingIsBounded) {
  const std::string deep(100000, '[');
  EXPECT_FALSE(read_header(file_of("{\"a\":" + deep, 0)).ok());
  EXPECT_FALSE(
      read_header(
          file_of("{\"__metadata__\":" + std::string(1000, '[') + std::string(1000, ']') + "}", 0))
          .ok());
}

TEST(Safetensors, ARealFileOpens) {
  const auto path = test_data("models/tinystories-656k/model.safetensors");
  PROTEAN_REQUIRE_DATA(path);
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const SafetensorsTensor* table = file->find_tensor("lm_head.weight");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->shape, (std::vector<std::int64_t>{2048, 128}));
}

}  // namespace
}  // namespace protean
