#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/forward.h"
#include "model/layer_tensors.h"
#include "model/rope_table.h"
#include "quant/input_statistics.h"

namespace protean {

// The statistics of the inputs of a layer's matrices, by LayerInput.
struct LayerStatistics {
  explicit LayerStatistics(const ModelSpec& spec);

  InputStatistics& of(LayerInput which) { return inputs[static_cast<std::size_t>(which)]; }

  std::vector<InputStatistics> inputs;
};

// Computes calibration text layer by layer, so that the weights of only one layer are in memory.
// Keeps the residual stream of every token before the next layer. Not thread-safe; the team must
// outlive it.
class Calibration {
 public:
  // There must be at least one sequence, none empty, and all tokens must be the model's.
  static Result<Calibration> create(cpu::Team& team, const Checkpoint& checkpoint,
                                    std::vector<std::vector<TokenId>> sequences);

  std::int64_t tokens() const;

  // Returns the statistics of the next layer if it has these tensors. Does not advance.
  Result<LayerStatistics> observe(const LayerTensors& layer);
  // Computes the next layer with these tensors.
  Status advance(const LayerTensors& layer);

  // Returns the residual stream, [tokens][hidden], one sequence after another.
  std::span<const float> residual() const { return residual_; }

 private:
  Calibration(cpu::Team& team, const ModelSpec& spec) : team_(&team), spec_(spec) {}
  Status run(const LayerTensors& layer, LayerStatistics* statistics);

  cpu::Team* team_;
  ModelSpec spec_;
  std::vector<std::vector<TokenId>> sequences_;
  std::vector<float> residual_;
  std::unique_ptr<RotaryTable> rope_;
};

}  // namespace protean
