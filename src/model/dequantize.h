#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "quant/quantized_matrix.h"

namespace protean {

// The element types of checkpoints that we read.
enum class TensorType : std::uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ2_K,
  kQ3_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
};

// Elements are stored in blocks of bytes; a row is a whole number of blocks.
struct BlockFormat {
  std::string_view name;  // "Q4_K"
  std::int64_t elements = 1;
  std::int64_t bytes = 0;
};

const BlockFormat& block_format(TensorType type);

// A type of ggml by its number in GGUF files. All known types have a format, some are readable.
struct GgmlType {
  std::uint32_t number = 0;
  BlockFormat format;
  std::optional<TensorType> readable;
};

const GgmlType* find_ggml_type(std::uint32_t number);  // nullptr if unknown

// Reads `count` elements, a whole number of blocks, from bytes of any alignment. Needs a
// little-endian machine.
void dequantize(TensorType type, const std::byte* from, std::int64_t count, float* out);

// Returns the format of a type whose integers kernels can use unchanged; nothing for other types.
std::optional<QuantFormat> code_format(TensorType type);

// The output of read_codes(): a code for each element, a scale and an offset for each group.
struct CodeRun {
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* offsets = nullptr;
};

// Reads the integers of `count` elements, a whole number of blocks, of a type with a code_format().
void read_codes(TensorType type, const std::byte* from, std::int64_t count, CodeRun out);

}  // namespace protean
