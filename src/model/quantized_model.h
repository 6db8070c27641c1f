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

// How matrices of this format are packed: AWQ's way where it can, which has zero points and 4 bits,
// else GPTQ's.
WeightQuantization packing_of(const QuantFormat& format);

// Where the packed matrices of a model would not be read by everybody, why: for people. Empty if
// nothing is unusual.
std::string unusual_packing(const ModelSpec& spec, const QuantFormat& format);

struct QuantizeJob {
  std::filesystem::path source;  // a Hugging Face directory; its checkpoint is opened
  std::filesystem::path target;  // a directory that exists and is empty
  QuantizeOptions options;
  // Text to calibrate by; may be empty for round to nearest.
  std::vector<std::vector<TokenId>> sequences;
};

// Writes config.json and model.safetensors of the quantised model, layer by layer: in memory are
// never more than one layer and the text's residual stream. Embeddings, norms and biases keep bf16,
// or f32 where bf16 would lose any of them. Called after each layer: progress(done, layers).
Status write_quantized_model(cpu::Team& team, const QuantizeJob& job,
                             const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace protean
