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

// The ways Hugging Face checkpoints store a matrix's codes. Two pack them into 32-bit words across
// rows:
//   kAwq   qweight [inputs][rows / 8] and qzeros [groups][rows / 8]: 4-bit codes of 8 rows a word,
//          in the order 0 2 4 6 1 3 5 7 ("GEMM" version)
//   kGptq  qweight [inputs * bits / 32][rows]: each row's codes one after the other, lowest bits
//          first, across words; qzeros [groups][rows * bits / 32] likewise along the rows
// with scales [groups][rows] in both. The others store row after row, with scales [rows /
// row_block] [groups]:
//   kRows    weight_packed [rows][inputs * bits / 32], lowest bits first, and zeros [rows * bits /
//            32][groups] likewise along the rows, or none (compressed-tensors, pack-quantized)
//   kSigned  8-bit integers from -128 to 127, without zeros (int-quantized)
//   kFloat8  8-bit floats E4M3, without zeros (fp8 and float-quantized)
// A weight is scale * (code - zero). Codes are unsigned; without zeros, zero is their middle.
enum class CodePacking : std::uint8_t { kAwq, kGptq, kRows, kSigned, kFloat8 };

// config.json's "quantization_config".
struct WeightQuantization {
  CodePacking packing = CodePacking::kGptq;
  int bits = 4;
  std::int64_t group = 128;     // 0: all inputs of a row share a scale
  bool zeros_less_one = false;  // GPTQ before its second version stores zero points minus one
  std::int64_t row_block = 1;   // rows that share scales if stored row after row; 0: all

  bool row_after_row() const {
    return packing != CodePacking::kAwq && packing != CodePacking::kGptq;
  }
  std::int64_t scale_rows(std::int64_t rows) const {
    return row_block == 0 ? 1 : (rows + row_block - 1) / row_block;
  }
  std::int64_t group_of(std::int64_t inputs) const { return group == 0 ? inputs : group; }
  std::int64_t groups(std::int64_t inputs) const {
    return (inputs + group_of(inputs) - 1) / group_of(inputs);
  }
};

// The sizes of a matrix's tensors in 32-bit words if it is packed across rows. packed_shape() fails
// and names the tensor if a matrix of these sizes cannot be packed.
struct PackedShape {
  std::int64_t code_rows = 0;
  std::int64_t code_columns = 0;
  std::int64_t zero_columns = 0;  // groups() rows
};
Result<PackedShape> packed_shape(const WeightQuantization& how, std::int64_t rows,
                                 std::int64_t inputs);

// A packed matrix as its file stores it. Borrows all data, which may have any alignment.
struct PackedCodes {
  WeightQuantization how;
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  const std::byte* codes = nullptr;
  const std::byte* zeros = nullptr;  // null: the middle of the codes
  const std::byte* scales = nullptr;
  TensorType scale_type = TensorType::kF16;
  // GPTQ's g_idx or weight_g_idx [inputs] as i32, each below groups(); null if groups are
  // consecutive inputs.
  const std::byte* group_index = nullptr;
};

// Returns the format of a matrix whose integers kernels can use unchanged; nothing for other bits,
// groups and orders. Reads all zero points to see whether the matrix is symmetric.
std::optional<QuantFormat> code_format(const PackedCodes& packed);

// Read rows [row, row + count): as integers, if the matrix has a code_format(), or as f32.
void read_codes(const PackedCodes& packed, std::int64_t row, std::int64_t count,
                const CodeRun& out);
void dequantize(const PackedCodes& packed, std::int64_t row, std::int64_t count, float* out);

// Returns the value of a float of 8 bits, E4M3 without infinities.
float float8_value(std::uint8_t code);

// The tensors of a quantised matrix as a file stores them across rows, with scales in f16,
// little-endian.
struct PackedBytes {
  std::vector<std::uint32_t> codes;
  std::vector<std::uint32_t> zeros;
  std::vector<std::uint16_t> scales;
};
PackedBytes pack_codes(const QuantizedMatrix& matrix, const WeightQuantization& how);

}  // namespace protean
