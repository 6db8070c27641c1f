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
  kWhenEnabled,  // if "use_sliding_window" is true as well, from layer "max_window_layers" on
};

// The tensor name of every role in a file format. "{}" stands for the layer.
using TensorNames = std::array<std::string_view, 18>;

// The properties of a model family. One forward pass serves all families.
struct ArchitectureRow {
  std::string_view name;        // Hugging Face's model_type
  std::string_view hf_class;    // an entry of "architectures" in config.json
  std::string_view gguf_name;   // general.architecture; empty if GGUF files use another row's name
  bool qkv_bias = false;        // queries, keys and values always have biases
  bool bias_in_config = false;  // "attention_bias" adds biases to queries, keys, values and output
  bool qk_norm = false;
  WindowRule window = WindowRule::kNever;
  RopePairing gguf_pairing = RopePairing::kHalfSplit;
  const TensorNames* hf_tensors = nullptr;
  const TensorNames* gguf_tensors = nullptr;
};

std::span<const ArchitectureRow> architectures();

std::string tensor_name(const TensorNames& names, TensorRole role, int layer);

// A tensor that a model must have. `columns` is 0 for a vector of `rows` elements.
struct NeededTensor {
  TensorRole role = TensorRole::kEmbedding;
  int layer = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// Returns all tensors of a valid spec. validate() limits sizes, so no product of them overflows.
std::vector<NeededTensor> needed_tensors(const ModelSpec& spec);

}  // namespace protean
