#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "contract/model_spec.h"
#include "model/checkpoint.h"

namespace protean {

enum class WindowRule : std::uint8_t {
  kNever,
  kWhenSet,      // if "sliding_window" is set
  kWhenEnabled,  // if "use_sliding_window" is set too, from layer "max_window_layers" on
};

// The names of a file format's tensors, by TensorRole; "{}" stands for the layer.
using TensorNames = std::array<std::string_view, 18>;

// The properties in which model families differ. One forward pass serves all families.
struct ArchitectureRow {
  std::string_view name;        // as Hugging Face's model_type
  std::string_view hf_class;    // config.json's "architectures"
  std::string_view gguf_name;   // general.architecture; empty if such files name another row
  bool qkv_bias = false;        // in every model of the family
  bool bias_in_config = false;  // if "attention_bias": of queries, keys, values and output
  bool qk_norm = false;
  WindowRule window = WindowRule::kNever;
  RopePairing gguf_pairing = RopePairing::kHalfSplit;
  const TensorNames* hf_tensors = nullptr;
  const TensorNames* gguf_tensors = nullptr;
};

std::span<const ArchitectureRow> architectures();

// Returns the row of a valid spec.
const ArchitectureRow& architecture_of(const ModelSpec& spec);

std::string tensor_name(const TensorNames& names, TensorRole role, int layer);

// A tensor that a model needs. A vector has `rows` elements and 0 columns.
struct NeededTensor {
  TensorRole role = TensorRole::kEmbedding;
  int layer = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// Returns all tensors of a valid spec. No product of sizes overflows, because validate() bounds
// them.
std::vector<NeededTensor> needed_tensors(const ModelSpec& spec);

}  // namespace protean
