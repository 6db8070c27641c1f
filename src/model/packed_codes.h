#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/dequantize.h"
#include "quant/quantized_matrix.h"

namespace protean {

// The two layouts of packed matrices in Hugging Face checkpoints, in 32-bit words:
//   kAwq   qweight [inputs][rows / 8] and qzeros [groups][rows / 8]: a word has the 4-bit codes
//          of 8 rows in the order 0 2 4 6 1 3 5 7 ("GEMM" version)
//   kGptq  qweight [inputs * bits / 32][rows]: the codes of a row follow each other, lowest bits
//          first, across words; qzeros [groups][rows * bits / 32] likewise along the rows
// Both have scales [groups][rows]. A weight is scale * (code - zero).
enum class CodePacking : std::uint8_t { kAwq, kGptq };

// "quantization_config" of config.json.
struct WeightQuantization {
  CodePacking packing = CodePacking::kGptq;
  int bits = 4;
  std::int64_t group = 128;     // 0: all inputs of a row share a scale
  bool zeros_less_one = false;  // zero points are stored minus 1, as GPTQ does before version 2

  std::int64_t group_of(std::int64_t inputs) const { return group == 0 ? inputs : group; }
  std::int64_t groups(std::int64_t inputs) const {
    return (inputs + group_of(inputs) - 1) / group_of(inputs);
  }
};

// The sizes, in 32-bit words, of a packed matrix. packed_shape() fails if the matrix cannot be
// packed so.
struct PackedShape {
  std::int64_t code_rows = 0;
  std::int64_t code_columns = 0;
  std::int64_t zero_columns = 0;  // groups() rows
};
Result<PackedShape> packed_shape(const WeightQuantization& how, std::int64_t rows,
                                 std::int64_t inputs);

// A packed matrix in its file. Owns no memory. Data may have any alignment.
struct PackedCodes {
  WeightQuantization how;
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  const std::byte* codes = nullptr;
  const std::byte* zeros = nullptr;
  const std::byte* scales = nullptr;
  TensorType scale_type = TensorType::kF16;
  // GPTQ's g_idx [inputs] as i32, each below groups(). Null if groups are consecutive inputs.
  const std::byte* group_index = nullptr;
};

// Returns the format of a matrix whose integers kernels can use without dequantising; nothing for
// other bits, groups and orders. Reads all zero points, to recognise symmetric matrices.
std::optional<QuantFormat> code_format(const PackedCodes& packed);

// Read rows [row, row + count): as integers, if there is a code_format(), or as f32.
void read_codes(const PackedCodes& packed, std::int64_t row, std::int64_t count,
                const CodeRun& out);
void dequantize(const PackedCodes& packed, std::int64_t row, std::int64_t count, float* out);

// The contents of the tensors of a packed matrix. Scales are f16.
struct PackedBytes {
  std::vector<std::uint32_t> codes;
  std::vector<std::uint32_t> zeros;
  std::vector<std::uint16_t> scales;
};
PackedBytes pack_codes(const QuantizedMatrix& matrix, const WeightQuantization& how);

}  // namespace protean
