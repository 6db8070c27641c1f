#pragma once

#include <cstdint>
#include <span>

#include "device/cpu/packed_matrix.h"
#include "device/cpu/row_blocks.h"

namespace protean::cpu {

struct RmsNorm {
  std::span<const float> weight;
  float eps = 0;
};

// The rows of a product. If there is a norm, it is applied while the rows are read.
struct RowSource {
  std::span<const float> x;  // [rows][inputs]
  RmsNorm norm = {};         // applied to x like rms_norm() with kF32, unless its weight is empty

  bool made() const { return !norm.weight.empty(); }
};

// kGelu uses erf, kGeluTanh its usual approximation by tanh.
enum class Activation : std::uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

// Some rows and columns of the gate and up products, from which activation(gate) * up is computed
// like activate() does. Rows are whole blocks of the next product.
struct GatedOutputs {
  const float* gate = nullptr;  // [rows][stride]
  const float* up = nullptr;    // the same
  std::int64_t stride = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t first_input = 0;  // input of the next product that begins a group
  std::int64_t inputs = 0;
  Activation activation = Activation::kSilu;
};

// Some inputs of the rows of a block. Their values are x, or x after the norm if there is one, or
// activation(x) * up if `up` is set.
struct BlockInputs {
  const float* x = nullptr;   // the first of these inputs in the first row
  const float* up = nullptr;  // likewise
  std::int64_t stride = 0;    // from row to row
  RmsNorm norm = {};          // needs all inputs of a row
  std::int64_t rows = 0;
  std::int64_t begin = 0;  // first input; begins a run
  std::int64_t end = 0;
  Activation activation = Activation::kSilu;

  bool made() const { return up != nullptr || !norm.weight.empty(); }
};

// Some inputs of one row of a block, beginning with the first input of a group.
struct RowRun {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  float norm_scale = 0;  // used only with a norm
};

// Calls each(first row, inputs) for each block of gated rows.
template <class Each>
void each_gated_block(const GatedOutputs& outputs, const RowBlocks& blocks, const Each& each) {
  const std::int64_t end = outputs.first_row + outputs.rows;
  std::int64_t first = outputs.first_row;
  for (std::int64_t block = blocks.at(first); first < end; ++block) {
    const std::int64_t at = (first - outputs.first_row) * outputs.stride;
    const std::int64_t next = blocks.begin(block + 1);
    each(first, BlockInputs{.x = outputs.gate + at,
                            .up = outputs.up + at,
                            .stride = outputs.stride,
                            .rows = next - first,
                            .begin = outputs.first_input,
                            .end = outputs.first_input + outputs.inputs,
                            .activation = outputs.activation});
    first = next;
  }
}

}  // namespace protean::cpu
