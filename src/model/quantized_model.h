#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/cpu/team.h"
#include "model/layer_quantizer.h"
#include "model/packed_codes.h"

namespace protean {

// Returns how matrices of this format are packed: like AWQ if they have 4 bits and zero points,
// like GPTQ otherwise.
WeightQuantization packing_of(const QuantFormat& format);

// Returns a text for people that says why some programs could not read the packed matrices; empty
// if nothing is unusual.
std::string unusual_packing(const ModelSpec& spec, const QuantFormat& format);

struct QuantizeJob {
  std::filesystem::path source;  // a Hugging Face directory or a .gguf file
  std::filesystem::path target;  // a directory that exists and is empty
  QuantizeOptions options;
  // The calibration text; may be empty for round to nearest.
  std::vector<std::vector<TokenId>> sequences;
};

// Writes config.json and model.safetensors of the quantised model. Works layer by layer: memory
// holds one layer and the text's residual stream. The embedding matrix, LM head, norms and biases
// stay bf16, or f32 if bf16 would lose bits. Calls progress(done, layers) after each layer.
Status write_quantized_model(cpu::Team& team, const QuantizeJob& job,
                             const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace protean
