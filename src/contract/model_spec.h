#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "contract/layer_precision.h"
#include "contract/precision.h"

namespace protean {

// The two elements of a head that rotate together: (i, i + head_dim/2) in safetensors, (2i, 2i + 1)
// in GGUF files of the llama family. A checkpoint's weights are ordered for one of them.
enum class RopePairing { kHalfSplit, kAdjacent };
enum class RopeScaling { kNone, kLinear, kLlama3 };

struct RopeSpec {
  double theta = 10000.0;
  RopePairing pairing = RopePairing::kHalfSplit;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;            // kLinear and kLlama3
  double low_freq_factor = 1.0;   // kLlama3
  double high_freq_factor = 4.0;  // kLlama3
  int original_context = 8192;    // kLlama3, tokens
  // GGUF's rope_freqs.weight: head_dim / 2 divisors of the frequencies; empty means all 1.
  std::vector<float> divisors;
};

struct AttentionSpec {
  int heads = 0;
  int kv_heads = 0;  // divides heads
  int head_dim = 0;  // a multiple of 8, at most 512
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;          // RMS norm of each q and k head before rope (Qwen3)
  int sliding_window = 0;        // tokens that a query sees, itself included; 0 = all
  int first_windowed_layer = 0;  // layers before it have no window (Qwen2's max_window_layers)
};

// How a checkpoint stores the matrices of its layers.
struct StoredWeights {
  // The lowest precision that loses next to nothing: if all matrices are integers, the fewest bits
  // that hold them; otherwise bf16.
  Precision precision = Precision::kBf16;
  int group = 128;  // inputs that share a scale in any quantised precision: 32, 64 or 128
  // The same for each half of each layer; empty if all are alike. `precision` is the highest.
  std::vector<LayerPrecision> layers;
};

// Describes a decoder-only model without its weights. One forward pass serves all architectures;
// their differences are this data. Sizes are in elements.
struct ModelSpec {
  std::string architecture;  // row name, e.g. "llama", "qwen3"
  int layers = 0;
  int hidden = 0;
  int ffn = 0;
  int vocab = 0;
  int max_context = 0;  // tokens the checkpoint was trained for
  float norm_eps = 1e-5F;
  bool tied_embeddings = false;  // the LM head is the embedding matrix
  AttentionSpec attention;
  RopeSpec rope;
  StoredWeights stored;
};

Status validate(const ModelSpec& spec);

}  // namespace protean
