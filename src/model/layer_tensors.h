#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/architecture.h"
#include "model/checkpoint.h"

namespace protean {

// The tensors of one layer as f32 in memory, for modification. Reads as a checkpoint whose layer 0
// is this layer, so that functions that load or write layers accept it.
class LayerTensors final : public Checkpoint {
 public:
  // Reads layer `layer` of the model and releases its file pages.
  LayerTensors(const Checkpoint& checkpoint, int layer);

  std::vector<float>& tensor(TensorRole role);  // empty if the model has none
  const std::vector<float>& tensor(TensorRole role) const;
  std::int64_t width(TensorRole role) const { return widths_[static_cast<std::size_t>(role)]; }

  // Describes this layer alone: one layer, with a window only if this layer has one.
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
