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
  kWhenSet,      // "sliding_window" alone decides
  kWhenEnabled,  // "use_sliding_window" too, and it starts at "max_window_layers"
};

// The name of every role's tensor in a file format; "{}" stands for the layer.
using TensorNames = std::array<std::string_view, 18>;

// What tells one model family from another; one forward pass serves them all.
struct ArchitectureRow {
  std::string_view name;        // as Hugging Face's model_type
  std::string_view hf_class;    // config.json's "architectures"
  std::string_view gguf_name;   // general.architecture; empty if such files say another row's
  bool qkv_bias = false;        // always
  bool bias_in_config = false;  // "attention_bias": of queries, keys, values and output
  bool qk_norm = false;
  WindowRule window = WindowRule::kNever;
  RopePairing gguf_pairing = RopePairing::kHalfSplit;
  const TensorNames* hf_tensors = nullptr;
  const TensorNames* gguf_tensors = nullptr;
};

std::span<const ArchitectureRow> architectures();

std::string tensor_name(const TensorNames& names, TensorRole role, int layer);

// One tensor that a model cannot be without. columns is 0 for a vector of rows elements.
struct NeededTensor {
  TensorRole role = TensorRole::kEmbedding;
  int layer = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// All tensors of a valid spec. No product of sizes overflows: validate() bounds them.
std::vector<NeededTensor> needed_tensors(const ModelSpec& spec);

}  // namespace protean
