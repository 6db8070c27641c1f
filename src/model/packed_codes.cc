#include "model/packed_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "device/cpu/f16.h"

namespace protean {
namespace {

constexpr int kWordBits = 32;
// The nibble of each of 8 consecutive rows in its word.
constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

std::uint32_t word_at(const std::byte* words, std::int64_t index) {
  std::uint32_t word;
  std::memcpy(&word, words + index * std::int64_t{sizeof(word)}, sizeof(word));
  return word;
}

// Returns `bits` bits, from bit `bit` on, of a run of words that lie `stride` words apart.
std::uint32_t bits_at(const std::byte* words, std::int64_t stride, std::int64_t bit, int bits) {
  const std::int64_t word = bit / kWordBits;
  const int shift = static_cast<int>(bit % kWordBits);
  std::uint32_t value = word_at(words, word * stride) >> shift;
  if (shift + bits > kWordBits) {
    value |= word_at(words, (word + 1) * stride) << (kWordBits - shift);
  }
  return value & ((1U << bits) - 1U);
}

void put_bits(std::uint32_t* words, std::int64_t stride, std::int64_t bit, int bits,
              std::uint32_t value) {
  const std::int64_t word = bit / kWordBits;
  const int shift = static_cast<int>(bit % kWordBits);
  words[word * stride] |= value << shift;
  if (shift + bits > kWordBits) {
    words[(word + 1) * stride] |= value >> (kWordBits - shift);
  }
}

// Returns the code of a row in an AWQ run of `rows` / 8 words.
std::uint32_t awq_at(const std::byte* words, std::int64_t first_word, std::int64_t row) {
  return word_at(words, first_word + row / 8) >>
             (4 * kAwqPlace[static_cast<std::size_t>(row % 8)]) &
         15U;
}

int zero_of(const PackedCodes& packed, std::int64_t group, std::int64_t row) {
  const int bits = packed.how.bits;
  if (packed.zeros == nullptr) {
    return 1 << (bits - 1);
  }
  if (packed.how.packing == CodePacking::kRows) {
    const std::byte* column = packed.zeros + group * std::int64_t{sizeof(std::uint32_t)};
    return static_cast<int>(bits_at(column, packed.how.groups(packed.inputs), row * bits, bits));
  }
  if (packed.how.packing == CodePacking::kAwq) {
    return static_cast<int>(awq_at(packed.zeros, group * (packed.rows / 8), row));
  }
  const std::int64_t words = packed.rows * bits / kWordBits;
  const std::byte* run = packed.zeros + group * words * std::int64_t{sizeof(std::uint32_t)};
  const std::uint32_t stored = bits_at(run, 1, row * bits, bits);
  return static_cast<int>((stored + (packed.how.zeros_less_one ? 1U : 0U)) & ((1U << bits) - 1U));
}

// Returns a code as an unsigned integer, or the bits of a float.
std::uint32_t code_of(const PackedCodes& packed, std::int64_t input, std::int64_t row) {
  switch (packed.how.packing) {
    case CodePacking::kAwq:
      return awq_at(packed.codes, input * (packed.rows / 8), row);
    case CodePacking::kRows: {
      const std::byte* words = packed.codes + row * packed.inputs * packed.how.bits / 8;
      return bits_at(words, 1, input * packed.how.bits, packed.how.bits);
    }
    case CodePacking::kSigned:
      return std::to_integer<std::uint32_t>(packed.codes[row * packed.inputs + input]) ^ 0x80U;
    case CodePacking::kFloat8:
      return std::to_integer<std::uint32_t>(packed.codes[row * packed.inputs + input]);
    case CodePacking::kGptq:
      break;
  }
  const std::byte* column = packed.codes + row * std::int64_t{sizeof(std::uint32_t)};
  return bits_at(column, packed.rows, input * packed.how.bits, packed.how.bits);
}

// Reads the scales of rows [row, row + count) of a group.
void read_scales(const PackedCodes& packed, std::int64_t group, std::int64_t row,
                 std::int64_t count, float* out) {
  const std::int64_t bytes = block_format(packed.scale_type).bytes;
  if (!packed.how.row_after_row()) {
    return dequantize(packed.scale_type, packed.scales + (group * packed.rows + row) * bytes, count,
                      out);
  }
  const std::int64_t block = packed.how.row_block == 0 ? packed.rows : packed.how.row_block;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = (row + i) / block * packed.how.groups(packed.inputs) + group;
    dequantize(packed.scale_type, packed.scales + at * bytes, 1, out + i);
  }
}

// Reads rows that are stored one after the other.
void dequantize_rows_of(const PackedCodes& packed, std::int64_t row, std::int64_t count,
                        float* out) {
  const std::int64_t groups = packed.how.groups(packed.inputs);
  const bool floats = packed.how.packing == CodePacking::kFloat8;
  std::vector<float> scales(static_cast<std::size_t>(groups));
  std::vector<int> zeros(scales.size());
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t group = 0; group < groups; ++group) {
      const auto at = static_cast<std::size_t>(group);
      read_scales(packed, group, row + i, 1, &scales[at]);
      zeros[at] = zero_of(packed, group, row + i);
    }
    for (std::int64_t input = 0; input < packed.inputs; ++input) {
      const std::int64_t group = packed.group_index != nullptr
                                     ? word_at(packed.group_index, input)
                                     : input / packed.how.group_of(packed.inputs);
      const auto at = static_cast<std::size_t>(group);
      const std::uint32_t code = code_of(packed, input, row + i);
      out[i * packed.inputs + input] =
          scales[at] * (floats ? float8_value(static_cast<std::uint8_t>(code))
                               : static_cast<float>(static_cast<int>(code) - zeros[at]));
    }
  }
}

}  // namespace

float float8_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const float magnitude = (code & 0x7f) == 0x7f ? std::numeric_limits<float>::quiet_NaN()
                          : exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code < 0x80 ? magnitude : -magnitude;
}

Result<PackedShape> packed_shape(const WeightQuantization& how, std::int64_t rows,
                                 std::int64_t inputs) {
  check(!how.row_after_row(), "a matrix that is stored row after row has its own shape");
  if (how.packing == CodePacking::kAwq) {
    if (how.bits != 4 || rows % 8 != 0) {
      return make_error(ErrorCode::kUnsupported,
                        "AWQ packs 4-bit codes of 8 rows at a time, not {}-bit codes of {} rows",
                        how.bits, rows);
    }
    return PackedShape{inputs, rows / 8, rows / 8};
  }
  if (rows * how.bits % kWordBits != 0 || inputs * how.bits % kWordBits != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "GPTQ packs {}-bit codes into 32-bit words, which {} rows of {} do not fill",
                      how.bits, rows, inputs);
  }
  return PackedShape{inputs * how.bits / kWordBits, rows, rows * how.bits / kWordBits};
}

std::optional<QuantFormat> code_format(const PackedCodes& packed) {
  QuantFormat format{.bits = packed.how.bits, .group = 0, .symmetric = true};
  const std::int64_t group = packed.how.group_of(packed.inputs);
  format.group = group > 128 ? 0 : static_cast<int>(group);
  const bool integers = packed.how.packing != CodePacking::kFloat8;
  if (!integers || packed.group_index != nullptr || !validate(format).ok()) {
    return std::nullopt;
  }
  if (packed.zeros == nullptr) {
    return format;
  }
  for (std::int64_t g = 0; g < packed.how.groups(packed.inputs) && format.symmetric; ++g) {
    for (std::int64_t row = 0; row < packed.rows && format.symmetric; ++row) {
      format.symmetric = zero_of(packed, g, row) == format.codes() / 2;
    }
  }
  return format;
}

void read_codes(const PackedCodes& packed, std::int64_t row, std::int64_t count,
                const CodeRun& out) {
  check(row >= 0 && count >= 0 && row <= packed.rows - count, "rows are inside the matrix");
  const std::int64_t groups = packed.how.groups(packed.inputs);
  std::vector<float> scales(static_cast<std::size_t>(count));
  for (std::int64_t group = 0; group < groups; ++group) {
    read_scales(packed, group, row, count, scales.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const float scale = scales[static_cast<std::size_t>(i)];
      out.scales[i * groups + group] = scale;
      out.offsets[i * groups + group] =
          -scale * static_cast<float>(zero_of(packed, group, row + i));
    }
  }
  for (std::int64_t input = 0; input < packed.inputs; ++input) {
    for (std::int64_t i = 0; i < count; ++i) {
      out.codes[i * packed.inputs + input] =
          static_cast<std::uint8_t>(code_of(packed, input, row + i));
    }
  }
}

void dequantize(const PackedCodes& packed, std::int64_t row, std::int64_t count, float* out) {
  check(row >= 0 && count >= 0 && row <= packed.rows - count, "rows are inside the matrix");
  if (packed.how.row_after_row()) {
    return dequantize_rows_of(packed, row, count, out);
  }
  const std::int64_t groups = packed.how.groups(packed.inputs);
  const auto some = static_cast<std::size_t>(count);
  std::vector<float> scales(static_cast<std::size_t>(groups) * some);
  std::vector<int> zeros(scales.size());
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::size_t first = static_cast<std::size_t>(group) * some;
    read_scales(packed, group, row, count, scales.data() + first);
    for (std::size_t i = 0; i < some; ++i) {
      zeros[first + i] = zero_of(packed, group, row + static_cast<std::int64_t>(i));
    }
  }
  for (std::int64_t input = 0; input < packed.inputs; ++input) {
    const std::int64_t group = packed.group_index != nullptr
                                   ? word_at(packed.group_index, input)
                                   : input / packed.how.group_of(packed.inputs);
    const std::size_t first = static_cast<std::size_t>(group) * some;
    for (std::size_t i = 0; i < some; ++i) {
      const auto code =
          static_cast<int>(code_of(packed, input, row + static_cast<std::int64_t>(i)));
      out[static_cast<std::int64_t>(i) * packed.inputs + input] =
          scales[first + i] * static_cast<float>(code - zeros[first + i]);
    }
  }
}

PackedBytes pack_codes(const QuantizedMatrix& matrix, const WeightQuantization& how) {
  const auto shape = packed_shape(how, matrix.rows, matrix.inputs);
  check(shape.ok() && how.bits == matrix.format.bits && how.group == matrix.format.group,
        "a matrix is packed as what it is");
  PackedBytes packed;
  packed.codes.resize(static_cast<std::size_t>(shape->code_rows * shape->code_columns));
  packed.zeros.resize(static_cast<std::size_t>(matrix.groups() * shape->zero_columns));
  packed.scales.resize(matrix.scales.size());
  const auto mask = static_cast<std::uint32_t>(matrix.format.codes() - 1);
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const bool awq = how.packing == CodePacking::kAwq;
    const int place = 4 * kAwqPlace[static_cast<std::size_t>(row % 8)];
    for (std::int64_t input = 0; input < matrix.inputs; ++input) {
      const std::uint32_t code =
          matrix.codes[static_cast<std::size_t>(row * matrix.inputs + input)];
      if (awq) {
        packed.codes[static_cast<std::size_t>(input * shape->code_columns + row / 8)] |= code
                                                                                         << place;
      } else {
        put_bits(packed.codes.data() + row, matrix.rows, input * how.bits, how.bits, code);
      }
    }
    for (std::int64_t group = 0; group < matrix.groups(); ++group) {
      const auto at = static_cast<std::size_t>(row * matrix.groups() + group);
      const float scale = matrix.scales[at];
      const auto zero = static_cast<std::uint32_t>(
          scale == 0.0F ? matrix.format.codes() / 2 : std::lround(-matrix.offsets[at] / scale));
      const std::uint32_t stored = (zero - (how.zeros_less_one ? 1U : 0U)) & mask;
      std::uint32_t* zeros = packed.zeros.data() + group * shape->zero_columns;
      if (awq) {
        zeros[row / 8] |= stored << place;
      } else {
        put_bits(zeros, 1, row * how.bits, how.bits, stored);
      }
      packed.scales[static_cast<std::size_t>(group * matrix.rows + row)] = cpu::f16_from(scale);
    }
  }
  return packed;
}

}  // namespace protean
