#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "contract/layer_precision.h"
#include "contract/precision.h"

namespace protean {

// Which two elements of a head rotate together. Safetensors keep (i, i + head_dim/2), GGUF files of
// the llama family keep (2i, 2i + 1); the checkpoint's weights are ordered for one of them.
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
  int sliding_window = 0;        // tokens a query sees, itself included; 0 = all
  int first_windowed_layer = 0;  // layers before it see all (Qwen2's max_window_layers)
};

// How a checkpoint keeps the matrices of its layers.
struct StoredWeights {
  // The lowest that loses nothing worth speaking of: where all are integers the least bits that
  // hold them, else bf16.
  Precision precision = Precision::kBf16;
  int group = 128;  // inputs that share a scale in any quantised precision: 32, 64 or 128
  // The same of each half of each layer, where they differ; `precision` is their highest.
  std::vector<LayerPrecision> layers;
};

// What a decoder-only model is, without its weights: architecture differences are this data, the
// forward pass is one. Sizes are elements.
struct ModelSpec {
  std::string architecture;  // row name, e.g. "llama", "qwen3"
  int layers = 0;
  int hidden = 0;
  int ffn = 0;
  int vocab = 0;
  int max_context = 0;  // tokens the checkpoint was trained for
  float norm_eps = 1e-5F;
  bool tied_embeddings = false;  // the output projection is the embedding table
  AttentionSpec attention;
  RopeSpec rope;
  StoredWeights stored;
};

Status validate(const ModelSpec& spec);

}  // namespace protean
