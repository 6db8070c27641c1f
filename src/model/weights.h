#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "model/checkpoint.h"

namespace protean {

// How a layer's matrices are stored at a precision.
cpu::WeightFormat weight_format(Precision precision);

// Packs whole rows, at most 32, as a panel, rounding to nearest where the format is quantised
// (quant/round_to_nearest.h). Fails, leaving the panel as it was, where a weight has no quantised
// value.
Status pack_rows(const cpu::PackedMatrix& matrix, std::int64_t panel, std::span<const float> rows);

// One layer's weights at one precision, packed for the kernels, norms and biases (f32) included:
// the unit in which a layer's precision changes. Everything points into `memory`, which moves with
// it. What the model does not have is empty.
struct LayerVariant {
  Precision precision = Precision::kBf16;
  cpu::Region memory;
  cpu::PackedMatrix query;
  cpu::PackedMatrix key;
  cpu::PackedMatrix value;
  cpu::PackedMatrix attention_output;
  cpu::PackedMatrix gate;
  cpu::PackedMatrix up;
  cpu::PackedMatrix down;
  std::span<float> attention_norm;
  std::span<float> mlp_norm;
  std::span<float> query_norm;
  std::span<float> key_norm;
  std::span<float> query_bias;
  std::span<float> key_bias;
  std::span<float> value_bias;
  std::span<float> attention_output_bias;
};

// A model ready to run. `output` is the same memory as `embedding` when they are tied. The tables
// around the layers are f32 when all layers are, else bf16, quantised layers or not.
struct ModelWeights {
  cpu::Region memory;  // of the tables around the layers
  cpu::PackedMatrix embedding;
  cpu::PackedMatrix output;
  std::span<float> final_norm;
  std::vector<LayerVariant> layers;

  std::int64_t bytes() const;
};

// Packed bytes that are ready, of those there will be. Called after each layer.
using LoadProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

// A checkpoint's own integers are packed as they are if they have the precision's bits and group.
// Other weights are rounded to nearest (quant/round_to_nearest.h). Fails where memory is short or a
// weight has no quantised value.
Result<LayerVariant> load_layer(const Checkpoint& checkpoint, int layer, Precision precision);

// Reads and packs panel by panel and gives file pages back on the way, so that the process never
// needs more than the packed weights and a few MiB.
Result<ModelWeights> load_weights(const Checkpoint& checkpoint,
                                  std::span<const Precision> layer_precision,
                                  const LoadProgress& progress = {});

}  // namespace protean
