#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "contract/configuration.h"
#include "device/cpu/team.h"

namespace protean {

struct PruneJob {
  std::filesystem::path source;                 // a Hugging Face directory or a .gguf file
  std::filesystem::path target;                 // a directory that exists and is empty
  Pruning pruning;                              // kTwoOfFour or kStructured
  std::vector<std::vector<TokenId>> sequences;  // the calibration text; not empty
};

// Writes config.json and model.safetensors of the pruned model, in bf16. Works layer by layer;
// each layer sees the text as the pruned layers before it leave it. 2:4 keeps the weights that
// Wanda chooses (quant/pruning.h). Structured pruning keeps the query heads of each KV head, or the
// heads, and the neurons whose removal would change the layer's outputs most. Memory holds one
// layer, the text's residual stream, and for 2:4 a bit for each weight. Calls
// progress(done, layers) after each layer. Fails on quantised models.
Status write_pruned_model(cpu::Team& team, const PruneJob& job,
                          const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace protean
