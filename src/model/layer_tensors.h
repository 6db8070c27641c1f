#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/architecture.h"
#include "model/checkpoint.h"

namespace protean {

// One layer's tensors as f32 in memory, to be worked on. It reads as a checkpoint whose layer 0 it
// is, so whatever loads or writes layers takes it.
class LayerTensors final : public Checkpoint {
 public:
  // Reads layer `layer` of the model and gives its file pages back.
  LayerTensors(const Checkpoint& checkpoint, int layer);

  std::vector<float>& tensor(TensorRole role);  // empty where the model has none
  const std::vector<float>& tensor(TensorRole role) const;
  std::int64_t width(TensorRole role) const { return widths_[static_cast<std::size_t>(role)]; }

  // Of the layer alone: one layer, and a window only if this layer has it.
  const ModelSpec& spec() const override { return spec_; }
  const GenerationDefaults& generation() const override { return generation_; }
  std::string description() const override { return "a layer"; }
  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override;
  void release(TensorRole, int) const override {}

 private:
  ModelSpec spec_;
  GenerationDefaults generation_;
  std::array<std::vector<float>, std::tuple_size_v<TensorNames>> tensors_;
  std::array<std::int64_t, std::tuple_size_v<TensorNames>> widths_{};
};

}  // namespace protean
