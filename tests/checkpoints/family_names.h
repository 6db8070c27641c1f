#pragma once

#include <string>
#include <string_view>

#include "contract/model_spec.h"

namespace protean {

// How published files of a model family hold it, as their authors' code and llama.cpp's converters
// define it.
struct Family {
  std::string hf_class;
  std::string gguf;               // general.architecture; empty: no such files
  bool gguf_interleaves = false;  // the converter permutes queries and keys into adjacent pairs
  bool one_norm = false;          // of both halves
  bool transposed = false;        // Hugging Face files have layers' matrices as [inputs][outputs]
  bool norms_less_one = false;    // Hugging Face files have norms minus 1
  bool grouped_qkv = false;       // a fused QKV matrix in Hugging Face files is grouped by KV head
};

Family family_of(const ModelSpec& spec);

// Names of a tensor without ".weight" or ".bias". `what` is one of "embedding", "positions",
// "final_norm", "output", "attention_norm", "attention_post_norm", "q", "k", "v", "o", "q_norm",
// "k_norm", "mlp_norm", "mlp_post_norm", "gate", "up" and "down". Tensors of one name are fused.
struct TensorName {
  std::string hf;
  std::string gguf;
};
TensorName tensor_name_of(const ModelSpec& spec, std::string_view what, int layer);

}  // namespace protean
