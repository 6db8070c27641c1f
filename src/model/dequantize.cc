#include "model/dequantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "device/cpu/f16.h"

namespace protean {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are read as they lie");

constexpr BlockFormat kF32Format{"F32", 1, 4};
constexpr BlockFormat kF16Format{"F16", 1, 2};
constexpr BlockFormat kBf16Format{"BF16", 1, 2};
constexpr BlockFormat kQ8_0Format{"Q8_0", 32, 34};
constexpr BlockFormat kQ4_0Format{"Q4_0", 32, 18};
constexpr BlockFormat kQ4_1Format{"Q4_1", 32, 20};
constexpr BlockFormat kQ5_0Format{"Q5_0", 32, 22};
constexpr BlockFormat kQ5_1Format{"Q5_1", 32, 24};
constexpr BlockFormat kQ4_KFormat{"Q4_K", 256, 144};
constexpr BlockFormat kQ5_KFormat{"Q5_K", 256, 176};
constexpr BlockFormat kQ6_KFormat{"Q6_K", 256, 210};
constexpr BlockFormat kQ2_KFormat{"Q2_K", 256, 84};
constexpr BlockFormat kQ3_KFormat{"Q3_K", 256, 110};
constexpr BlockFormat kIq4NlFormat{"IQ4_NL", 32, 18};
constexpr BlockFormat kIq4XsFormat{"IQ4_XS", 256, 136};
constexpr BlockFormat kMxfp4Format{"MXFP4", 32, 17};

constexpr GgmlType kGgmlTypes[] = {
    {0, kF32Format, TensorType::kF32},
    {1, kF16Format, TensorType::kF16},
    {2, kQ4_0Format, TensorType::kQ4_0},
    {3, kQ4_1Format, TensorType::kQ4_1},
    {6, kQ5_0Format, TensorType::kQ5_0},
    {7, kQ5_1Format, TensorType::kQ5_1},
    {8, kQ8_0Format, TensorType::kQ8_0},
    {9, {"Q8_1", 32, 36}, {}},
    {10, kQ2_KFormat, TensorType::kQ2_K},
    {11, kQ3_KFormat, TensorType::kQ3_K},
    {12, kQ4_KFormat, TensorType::kQ4_K},
    {13, kQ5_KFormat, TensorType::kQ5_K},
    {14, kQ6_KFormat, TensorType::kQ6_K},
    {15, {"Q8_K", 256, 292}, {}},
    {16, {"IQ2_XXS", 256, 66}, {}},
    {17, {"IQ2_XS", 256, 74}, {}},
    {18, {"IQ3_XXS", 256, 98}, {}},
    {19, {"IQ1_S", 256, 50}, {}},
    {20, kIq4NlFormat, TensorType::kIq4Nl},
    {21, {"IQ3_S", 256, 110}, {}},
    {22, {"IQ2_S", 256, 82}, {}},
    {23, kIq4XsFormat, TensorType::kIq4Xs},
    {24, {"I8", 1, 1}, {}},
    {25, {"I16", 1, 2}, {}},
    {26, {"I32", 1, 4}, {}},
    {27, {"I64", 1, 8}, {}},
    {28, {"F64", 1, 8}, {}},
    {29, {"IQ1_M", 256, 56}, {}},
    {30, kBf16Format, TensorType::kBf16},
    {34, {"TQ1_0", 256, 54}, {}},
    {35, {"TQ2_0", 256, 66}, {}},
    {39, kMxfp4Format, TensorType::kMxfp4},
};

std::uint16_t load_u16(const std::byte* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

unsigned u8(std::byte value) {
  return std::to_integer<unsigned>(value);
}

float s8(std::byte value) {
  return static_cast<float>(std::bit_cast<std::int8_t>(value));
}

void read_f16(const std::byte* from, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = cpu::float_from_f16(load_u16(from + 2 * i));
  }
}

void read_bf16(const std::byte* from, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(std::uint32_t{load_u16(from + 2 * i)} << 16);
  }
}

// Block: f16 scale, 32 signed bytes.
void read_q8_0(const std::byte* block, float* out) {
  const float scale = cpu::float_from_f16(load_u16(block));
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * s8(block[2 + i]);
  }
}

// Block: f16 scale, 16 bytes. The low nibbles are the first half of the block. Nibbles are offset
// by 8.
void read_q4_0(const std::byte* block, float* out) {
  const float scale = cpu::float_from_f16(load_u16(block));
  for (int i = 0; i < 16; ++i) {
    const unsigned pair = u8(block[2 + i]);
    out[i] = scale * static_cast<float>(static_cast<int>(pair & 15U) - 8);
    out[i + 16] = scale * static_cast<float>(static_cast<int>(pair >> 4) - 8);
  }
}

// Block: f16 scale, f16 minimum, 16 bytes of nibbles as in Q4_0.
void read_q4_1(const std::byte* block, float* out) {
  const float scale = cpu::float_from_f16(load_u16(block));
  const float minimum = cpu::float_from_f16(load_u16(block + 2));
  for (int i = 0; i < 16; ++i) {
    const unsigned pair = u8(block[4 + i]);
    out[i] = scale * static_cast<float>(pair & 15U) + minimum;
    out[i + 16] = scale * static_cast<float>(pair >> 4) + minimum;
  }
}

// Reads 5-bit values: 32 fifth bits in 4 bytes, then 16 bytes of nibbles as in Q4_0.
void read_fives(const std::byte* packed, float scale, float offset, float* out) {
  std::uint32_t fifths;
  std::memcpy(&fifths, packed, sizeof(fifths));
  for (int i = 0; i < 16; ++i) {
    const unsigned pair = u8(packed[4 + i]);
    const unsigned low = (pair & 15U) | (fifths >> i & 1U) << 4;
    const unsigned high = pair >> 4 | (fifths >> (i + 16) & 1U) << 4;
    out[i] = scale * static_cast<float>(low) + offset;
    out[i + 16] = scale * static_cast<float>(high) + offset;
  }
}

// Block: f16 scale, then 5-bit values offset by 16.
void read_q5_0(const std::byte* block, float* out) {
  const float scale = cpu::float_from_f16(load_u16(block));
  read_fives(block + 2, scale, -16.0F * scale, out);
}

// Block: f16 scale, f16 minimum, 5-bit values.
void read_q5_1(const std::byte* block, float* out) {
  const float minimum = cpu::float_from_f16(load_u16(block + 2));
  read_fives(block + 4, cpu::float_from_f16(load_u16(block)), minimum, out);
}

// The scale and offset of a group of 32 elements of Q4_K or Q5_K: scale * code + offset.
struct GroupScale {
  float scale = 0.0F;
  float offset = 0.0F;
};

// Reads an f16 scale of scales, an f16 scale of minima and 8 pairs of 6-bit (scale, minimum) in 12
// bytes.
GroupScale k_group_scale(const std::byte* block, int group) {
  const std::byte* packed = block + 4;
  unsigned scale = 0;
  unsigned minimum = 0;
  if (group < 4) {
    scale = u8(packed[group]) & 63U;
    minimum = u8(packed[group + 4]) & 63U;
  } else {
    scale = (u8(packed[group + 4]) & 15U) | (u8(packed[group - 4]) >> 6) << 4;
    minimum = u8(packed[group + 4]) >> 4 | (u8(packed[group]) >> 6) << 4;
  }
  return {cpu::float_from_f16(load_u16(block)) * static_cast<float>(scale),
          -(cpu::float_from_f16(load_u16(block + 2)) * static_cast<float>(minimum))};
}

// Block: 16 bytes of scales, then 256 nibbles. Of every 32 bytes the low nibbles come first.
unsigned q4_k_code(const std::byte* block, int group, int i) {
  return u8(block[16 + group / 2 * 32 + i]) >> (group % 2 * 4) & 15U;
}

void read_q4_k(const std::byte* block, float* out) {
  for (int group = 0; group < 8; ++group) {
    const auto [scale, offset] = k_group_scale(block, group);
    for (int i = 0; i < 32; ++i) {
      out[group * 32 + i] = scale * static_cast<float>(q4_k_code(block, group, i)) + offset;
    }
  }
}

// Block: like Q4_K, with 32 bytes between scales and nibbles that hold the fifth bits.
void read_q5_k(const std::byte* block, float* out) {
  for (int group = 0; group < 8; ++group) {
    const auto [scale, offset] = k_group_scale(block, group);
    for (int i = 0; i < 32; ++i) {
      const unsigned fifth = u8(block[16 + i]) >> group & 1U;
      const unsigned code = q4_k_code(block + 32, group, i) | fifth << 4;
      out[group * 32 + i] = scale * static_cast<float>(code) + offset;
    }
  }
}

// Block: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, f16 scale. Each
// half of the block is four runs of 32 elements: low nibbles of 64 bytes, then their high nibbles.
// Values are offset by 32.
void read_q6_k(const std::byte* block, float* out) {
  const std::byte* scales = block + 192;
  const float scale = cpu::float_from_f16(load_u16(block + 208));
  for (int run = 0; run < 8; ++run) {
    const int half = run / 4;
    const std::byte* low = block + half * 64 + run % 2 * 32;
    const std::byte* high = block + 128 + half * 32;
    const int low_shift = run % 4 / 2 * 4;
    const int high_shift = run % 4 * 2;
    for (int i = 0; i < 32; ++i) {
      const unsigned value = (u8(low[i]) >> low_shift & 15U) | (u8(high[i]) >> high_shift & 3U)
                                                                   << 4;
      const float group_scale = scale * s8(scales[run * 2 + i / 16]);
      out[run * 32 + i] = group_scale * static_cast<float>(static_cast<int>(value) - 32);
    }
  }
}

// Returns 2 bits of the 64 bytes that Q2_K and Q3_K share: each half of the block is four runs of
// 32 elements, which take turns in the bits of 32 bytes.
unsigned two_bits(const std::byte* packed, int element) {
  return u8(packed[element / 128 * 32 + element % 32]) >> (element % 128 / 32 * 2) & 3U;
}

// Block: for each group of 16 a 4-bit scale and above it a 4-bit minimum, 64 bytes of bit pairs,
// f16 scale of scales, f16 scale of minima.
void read_q2_k(const std::byte* block, float* out) {
  const float scale = cpu::float_from_f16(load_u16(block + 80));
  const float minimum = cpu::float_from_f16(load_u16(block + 82));
  for (int i = 0; i < 256; ++i) {
    const unsigned both = u8(block[i / 16]);
    out[i] = scale * static_cast<float>(both & 15U) * static_cast<float>(two_bits(block + 16, i)) -
             minimum * static_cast<float>(both >> 4);
  }
}

// Block: 32 bytes of third bits, 64 bytes of bit pairs, 16 scales of 6 bits in 12 bytes (low
// nibbles in 8, high pairs in 4), f16 scale. Scales are offset by 32, values by 4.
void read_q3_k(const std::byte* block, float* out) {
  const std::byte* scales = block + 96;
  const float scale = cpu::float_from_f16(load_u16(block + 108));
  for (int i = 0; i < 256; ++i) {
    const int group = i / 16;
    const unsigned low = u8(scales[group % 8]) >> (group / 8 * 4) & 15U;
    const unsigned high = u8(scales[8 + group % 4]) >> (group / 4 * 2) & 3U;
    const auto of_group = static_cast<float>(static_cast<int>(low | high << 4) - 32);
    const unsigned third = u8(block[i % 32]) >> (i / 32) & 1U;
    const auto value = static_cast<int>(two_bits(block + 32, i) | third << 2) - 4;
    out[i] = scale * of_group * static_cast<float>(value);
  }
}

// Looks 32 nibbles up, as in Q4_0 low ones first.
void look_up(const std::byte* packed, const std::array<float, 16>& values, float scale,
             float* out) {
  for (int i = 0; i < 16; ++i) {
    const unsigned pair = u8(packed[i]);
    out[i] = scale * values[pair & 15U];
    out[i + 16] = scale * values[pair >> 4];
  }
}

// The values of IQ4_NL and IQ4_XS.
constexpr std::array<float, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};

// Block: f16 scale, 16 bytes of nibbles.
void read_iq4_nl(const std::byte* block, float* out) {
  look_up(block + 2, kIq4Values, cpu::float_from_f16(load_u16(block)), out);
}

// Block: f16 scale, high pairs of 8 scales in 2 bytes, low nibbles of them in 4 bytes, 128 bytes of
// nibbles. Scales are offset by 32.
void read_iq4_xs(const std::byte* block, float* out) {
  const float scale = cpu::float_from_f16(load_u16(block));
  const unsigned high_bits = load_u16(block + 2);
  for (int group = 0; group < 8; ++group) {
    const unsigned low = u8(block[4 + group / 2]) >> (group % 2 * 4) & 15U;
    const unsigned high = high_bits >> (2 * group) & 3U;
    const auto of_group = static_cast<float>(static_cast<int>(low | high << 4) - 32);
    look_up(block + 8 + group * 16, kIq4Values, scale * of_group, out + group * 32);
  }
}

// Block: the exponent of a power of two (bias 127), 16 bytes of nibbles that are floats of 1 sign,
// 2 exponent and 1 mantissa bits (OCP Microscaling Formats, section 5).
void read_mxfp4(const std::byte* block, float* out) {
  constexpr std::array<float, 16> kValues = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                             4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                             -2.0F, -3.0F, -4.0F, -6.0F};
  look_up(block + 1, kValues, std::ldexp(1.0F, static_cast<int>(u8(block[0])) - 127), out);
}

}  // namespace

const BlockFormat& block_format(TensorType type) {
  static constexpr std::array<BlockFormat, 16> kFormats = {
      kF32Format,  kF16Format,   kBf16Format,  kQ8_0Format, kQ4_0Format, kQ4_1Format,
      kQ5_0Format, kQ5_1Format,  kQ4_KFormat,  kQ5_KFormat, kQ6_KFormat, kQ2_KFormat,
      kQ3_KFormat, kIq4NlFormat, kIq4XsFormat, kMxfp4Format};
  return kFormats[static_cast<std::size_t>(type)];
}

const GgmlType* find_ggml_type(std::uint32_t number) {
  const auto* found = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                                   [&](const GgmlType& type) { return type.number == number; });
  return found == std::end(kGgmlTypes) ? nullptr : found;
}

namespace {

using BlockReader = void (*)(const std::byte* block, float* out);

BlockReader block_reader(TensorType type) {
  switch (type) {
    case TensorType::kQ8_0:
      return read_q8_0;
    case TensorType::kQ4_0:
      return read_q4_0;
    case TensorType::kQ4_1:
      return read_q4_1;
    case TensorType::kQ5_0:
      return read_q5_0;
    case TensorType::kQ5_1:
      return read_q5_1;
    case TensorType::kQ4_K:
      return read_q4_k;
    case TensorType::kQ5_K:
      return read_q5_k;
    case TensorType::kQ6_K:
      return read_q6_k;
    case TensorType::kQ2_K:
      return read_q2_k;
    case TensorType::kQ3_K:
      return read_q3_k;
    case TensorType::kIq4Nl:
      return read_iq4_nl;
    case TensorType::kIq4Xs:
      return read_iq4_xs;
    case TensorType::kMxfp4:
      return read_mxfp4;
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBf16:
      break;
  }
  check(false, "only quantised types have blocks");
  return nullptr;
}

}  // namespace

void dequantize(TensorType type, const std::byte* from, std::int64_t count, float* out) {
  const BlockFormat& format = block_format(type);
  check(count % format.elements == 0, "rows are whole blocks");
  if (count == 0) {
    return;  // empty spans have null pointers, which memcpy must not get
  }
  switch (type) {
    case TensorType::kF32:
      std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case TensorType::kF16:
      return read_f16(from, count, out);
    case TensorType::kBf16:
      return read_bf16(from, count, out);
    default:
      break;
  }
  const auto read_block = block_reader(type);
  for (; count > 0; count -= format.elements, from += format.bytes, out += format.elements) {
    read_block(from, out);
  }
}

namespace {

// The bytes before a group's codes, in every type that has a code_format().
GroupScale group_scale(TensorType type, const std::byte* block, int group) {
  if (type == TensorType::kQ4_K) {
    return k_group_scale(block, group);
  }
  GroupScale scale{.scale = cpu::float_from_f16(load_u16(block))};
  if (type == TensorType::kQ4_1) {
    scale.offset = cpu::float_from_f16(load_u16(block + 2));
  }
  return scale;
}

}  // namespace

std::optional<QuantFormat> code_format(TensorType type) {
  switch (type) {
    case TensorType::kQ8_0:
      return QuantFormat{.bits = 8, .group = 32, .symmetric = true};
    case TensorType::kQ4_0:
      return QuantFormat{.bits = 4, .group = 32, .symmetric = true};
    case TensorType::kQ4_1:
    case TensorType::kQ4_K:
      return QuantFormat{.bits = 4, .group = 32, .symmetric = false};
    default:
      return std::nullopt;
  }
}

void read_codes(TensorType type, const std::byte* from, std::int64_t count, CodeRun out) {
  const std::optional<QuantFormat> format = code_format(type);
  check(format.has_value(), "only types with a code format have codes");
  const BlockFormat& blocks = block_format(type);
  const int middle = format->codes() / 2;
  for (; count > 0; count -= blocks.elements, from += blocks.bytes, out.codes += blocks.elements) {
    for (int group = 0; group < blocks.elements / 32; ++group, ++out.scales, ++out.offsets) {
      const GroupScale scale = group_scale(type, from, group);
      *out.scales = scale.scale;
      *out.offsets = format->symmetric ? -scale.scale * static_cast<float>(middle) : scale.offset;
      for (int i = 0; i < 32; ++i) {
        unsigned code = 0;
        if (type == TensorType::kQ8_0) {
          code = u8(from[2 + i]) ^ 0x80U;  // signed, offset by 128
        } else if (type == TensorType::kQ4_0 || type == TensorType::kQ4_1) {
          const int scales = type == TensorType::kQ4_0 ? 2 : 4;
          code = u8(from[scales + i % 16]) >> (i / 16 * 4) & 15U;
        } else {
          code = q4_k_code(from, group, i);
        }
        out.codes[group * 32 + i] = static_cast<std::uint8_t>(code);
      }
    }
  }
}

}  // namespace protean
