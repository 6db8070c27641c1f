#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "quant/quantized_matrix.h"

namespace protean {

// How a checkpoint stores a tensor's elements, as far as we read it.
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
};

// Elements are stored in blocks of bytes; a row is a whole number of blocks.
struct BlockFormat {
  std::string_view name;  // "Q4_K"
  std::int64_t elements = 1;
  std::int64_t bytes = 0;
};

const BlockFormat& block_format(TensorType type);

// ggml's types by their number in GGUF files: all known ones have a format, of which we read some.
struct GgmlType {
  std::uint32_t number = 0;
  BlockFormat format;
  std::optional<TensorType> readable;
};

const GgmlType* find_ggml_type(std::uint32_t number);  // nullptr if unknown

// count elements, a whole number of blocks, from bytes of any alignment. Little-endian machines.
void dequantize(TensorType type, const std::byte* from, std::int64_t count, float* out);

// The format of a type whose integers kernels can take as they are; nothing for other types.
std::optional<QuantFormat> code_format(TensorType type);

// Where a run of elements puts its codes, and its groups their scales and offsets.
struct CodeRun {
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* offsets = nullptr;
};

// The integers of count elements, a whole number of blocks, of a type that has a code_format.
void read_codes(TensorType type, const std::byte* from, std::int64_t count, CodeRun out);

}  // namespace protean
