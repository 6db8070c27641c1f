#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/model_spec.h"

namespace protean {

// A tensor of both file formats. HF and GGUF name it differently, and GGUF may order its rows
// differently; a seed gives both the same numbers.
struct WeightTensor {
  std::string what;  // as tensor_name_of() calls it, with ".weight" or ".bias"
  int layer = -1;    // -1: outside the layers
  std::string hf_name;
  std::string gguf_name;
  std::int64_t rows = 0;  // 0 for a vector
  std::int64_t columns = 0;
  int rotated_heads = 0;  // of queries and keys: rows are heads * head_dim and rotate in pairs
  bool is_norm = false;
  double mean = 0.0;
  double deviation = 1.0;

  std::int64_t elements() const { return (rows == 0 ? 1 : rows) * columns; }
};

std::vector<WeightTensor> weight_tensors(const ModelSpec& spec);

// Returns the numbers of the tensor at `index` in weight_tensors().
std::vector<float> random_weights(const WeightTensor& tensor, std::uint64_t seed,
                                  std::size_t index);

// Returns the rows of tensors of `columns` after each other; with several groups, those of the
// first group of each, then those of the second, and so on.
std::vector<float> fuse(const std::vector<std::vector<float>>& parts, std::int64_t columns,
                        std::int64_t groups = 1);

std::uint16_t to_f16(float value);   // round to nearest even
std::uint16_t to_bf16(float value);  // round to nearest even; not for NaN

}  // namespace protean
