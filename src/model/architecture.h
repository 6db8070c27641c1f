#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contract/model_spec.h"
#include "model/checkpoint.h"

namespace protean {

enum class WindowRule : std::uint8_t {
  kNever,
  kWhenSet,      // if "sliding_window" is set
  kWhenEnabled,  // if "use_sliding_window" is set too, from layer "max_window_layers" on
};

// Which biases queries, keys, values and the attention output have.
enum class BiasRule : std::uint8_t {
  kNever,
  kQkv,            // queries, keys and values, in every model of the family
  kAll,            // the output too
  kConfigured,     // all of them, if "attention_bias" is set
  kConfiguredQkv,  // queries, keys and values, if "attention_bias" or "use_qkv_bias" is set
};

enum class QkNorm : std::uint8_t { kNone, kHeads, kOverHeads };

// The names of a file format's tensors, by TensorRole; "{}" stands for the layer. Files of some
// models use another name: alternatives are divided by '|', the first one is written. If query, key
// and value or gate and up have one name, their rows follow each other in one tensor. Norms of one
// name are one norm.
using TensorNames = std::array<std::string_view, kTensorRoles>;

// How files of a format hold the tensors of a family.
struct TensorLayout {
  TensorNames names;
  bool inputs_first = false;  // matrices of layers are [inputs][outputs] (GPT-2)
  // The rows of a fused query, key and value matrix are, for each KV head: its query heads, its
  // key and its value (Falcon). Otherwise all queries come first.
  bool grouped_qkv = false;
  bool norms_less_one = false;  // norm weights are stored minus 1 (Gemma)
};

// In which layers something is: layer i has it unless (i + 1) % period is 0. 0 means all layers.
struct LayerPattern {
  int period = 0;
};

// What GGUF files of a family leave to the program.
struct GgufRules {
  // Models of this many layers scale scores by 1 / sqrt(hidden / heads) (the 27B of Gemma 2 and 3).
  int layers_scaled_by_hidden = 0;
  double window_theta = 0.0;    // rope theta of layers with a window, if theirs differs
  bool divides_logits = false;  // logit_scale is a divisor
};

// The properties in which model families differ. One forward pass serves all families.
struct ArchitectureRow {
  std::string_view name;       // as Hugging Face's model_type
  std::string_view hf_class;   // config.json's "architectures"; alternatives divided by '|'
  std::string_view gguf_name;  // general.architecture; empty if such files name another row
  BiasRule bias = BiasRule::kNever;
  QkNorm qk_norm = QkNorm::kNone;
  WindowRule window = WindowRule::kNever;
  LayerPattern windowed;
  LayerPattern rotated;
  bool rotates_in_windows_only = false;  // layers without a window do not rotate (Cohere 2)
  RopePairing hf_pairing = RopePairing::kHalfSplit;
  RopePairing gguf_pairing = RopePairing::kHalfSplit;
  NormSpec norms;
  MlpSpec mlp;
  bool parallel_halves = false;
  GgufRules gguf;
  bool embedding_by_root = false;  // embedding rows are multiplied by sqrt(hidden) (Gemma)
  // `protean quantize` can write models of the family: RMS norms only before halves, SwiGLU, and
  // matrices of their own.
  bool writable = false;
  std::string_view defaults = "{}";  // JSON of what config.json may leave out
  const TensorLayout* hf_tensors = nullptr;
  const TensorLayout* gguf_tensors = nullptr;
};

std::span<const ArchitectureRow> architectures();

// Returns the row of a valid spec.
const ArchitectureRow& architecture_of(const ModelSpec& spec);

// Returns the one of `known` whose name is closest to a name that is not known, by the fewest
// changed letters.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

// Divides a text at every '|'.
std::vector<std::string_view> alternatives(std::string_view names);

// Returns the name that is written.
std::string tensor_name(const TensorNames& names, TensorRole role, int layer);

// A tensor that a model needs. A vector has `rows` elements and 0 columns.
struct NeededTensor {
  TensorRole role = TensorRole::kEmbedding;
  int layer = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// Returns all tensors of a valid spec, those outside the layers first. No product of sizes
// overflows, because validate() bounds them.
std::vector<NeededTensor> needed_tensors(const ModelSpec& spec);

}  // namespace protean
