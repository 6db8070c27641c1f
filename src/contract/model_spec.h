#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/layer_precision.h"
#include "contract/precision.h"

namespace protean {

// The two elements of a head that rotate together: (i, i + head_dim/2) in safetensors, (2i, 2i + 1)
// in GGUF files of the llama family. A checkpoint's weights are ordered for one of them.
enum class RopePairing { kHalfSplit, kAdjacent };
enum class RopeScaling { kNone, kLinear, kLlama3, kYarn, kLong };

struct RopeSpec {
  double theta = 10000.0;
  int rotated = 0;  // elements of a head that rotate, the first ones; 0 = all
  RopePairing pairing = RopePairing::kHalfSplit;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;            // kLinear, kLlama3 and kYarn
  double low_freq_factor = 1.0;   // kLlama3
  double high_freq_factor = 4.0;  // kLlama3
  double beta_fast = 32.0;        // kYarn: turns within the original context from which a pair is
  double beta_slow = 1.0;         // left as it is, and up to which its frequency is divided
  double magnitude = 1.0;         // factor of all cosines and sines (kYarn and kLong)
  int original_context = 8192;    // kLlama3, kYarn and kLong, tokens
  // Divisors of the frequencies of all pairs, as GGUF's rope_freqs.weight has them; empty means all
  // 1. kLong has two lists: `long_divisors` are used if the model is served with more positions
  // than the original context.
  std::vector<float> divisors;
  std::vector<float> long_divisors;
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

struct AttentionSpec {
  int heads = 0;
  int kv_heads = 0;  // divides heads
  int head_dim = 0;  // a multiple of 8, at most 512
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;             // RMS norm of each q and k head before rope (Qwen3)
  bool qk_norm_over_heads = false;  // the norm is of all heads together (OLMo 2); needs qk_norm
  float scale = 0.0F;               // factor of the scores; 0 = 1 / sqrt(head_dim)
  float score_cap = 0.0F;           // scores become cap * tanh(score / cap) (Gemma 2); 0 = none
  int sliding_window = 0;           // tokens that a query sees, itself included; 0 = all
  // By layer: whether it has the window, and whether its queries and keys rotate. Empty: all.
  std::vector<bool> windowed;
  std::vector<bool> rotated;

  // Returns the window of a layer, or 0.
  int window_of(int layer) const {
    return windowed.empty() || windowed[static_cast<std::size_t>(layer)] ? sliding_window : 0;
  }
  bool rotates(int layer) const {
    return rotated.empty() || rotated[static_cast<std::size_t>(layer)];
  }
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };

struct MlpSpec {
  Activation activation = Activation::kSilu;
  bool gated = true;  // activation(gate) * up; otherwise activation(up)
  bool bias = false;  // all its matrices have one
  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};

// The norms of a layer's halves and of the last rows.
struct NormSpec {
  bool layer_norm = false;  // LayerNorm; otherwise RMS norm
  bool bias = false;        // LayerNorm has one; only norms before halves and of the last rows do
  bool before = true;       // each half's input is normalised
  bool after = false;       // each half's output is normalised before it is added
  friend bool operator==(const NormSpec&, const NormSpec&) = default;
};

// Factors that a model applies to its activations.
struct Multipliers {
  float embedding = 1.0F;  // multiplies embedding rows
  float residual = 1.0F;   // multiplies what each half adds to the residual stream
  float logits = 1.0F;
  float logit_cap = 0.0F;  // logits become cap * tanh(logit / cap), after the factor; 0 = none
  friend bool operator==(const Multipliers&, const Multipliers&) = default;
};

// How a checkpoint stores the matrices of its layers.
struct StoredWeights {
  // The lowest precision that loses next to nothing: if all matrices are integers, the fewest bits
  // that hold them; otherwise bf16.
  Precision precision = Precision::kBf16;
  int group = 128;  // inputs that share a scale in any quantised precision: 32, 64 or 128
  // The lowest precision of each half of each layer that loses next to nothing; empty if all are
  // alike. `precision` is the highest of them.
  std::vector<LayerPrecision> layers;
  friend bool operator==(const StoredWeights&, const StoredWeights&) = default;
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
  MlpSpec mlp;
  NormSpec norms;
  Multipliers multipliers;
  bool parallel_halves = false;    // attention and MLP read the same rows (GPT-J)
  bool learned_positions = false;  // a row for each position is added to the embedding (GPT-2)
  bool output_bias = false;        // the LM head has one
  RopeSpec rope;
  std::optional<RopeSpec> windowed_rope;  // for layers with a window, if theirs differs
  StoredWeights stored;
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

Status validate(const ModelSpec& spec);

// Returns true if the model can be packed in this number of shards.
bool can_shard(const ModelSpec& spec, int shards);

}  // namespace protean
