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

// What the matrices of one layer read, by LayerInput.
struct LayerStatistics {
  explicit LayerStatistics(const ModelSpec& spec);

  InputStatistics& of(LayerInput which) { return inputs[static_cast<std::size_t>(which)]; }

  std::vector<InputStatistics> inputs;
};

// Text on its way through a model, a layer at a time, so that no more than one layer's weights are
// in memory: keeps the residual stream of every token before the next layer. One thread; the team
// is borrowed.
class Calibration {
 public:
  // The text has at least one sequence; none is empty, and all tokens are the model's.
  static Result<Calibration> create(cpu::Team& team, const Checkpoint& checkpoint,
                                    std::vector<std::vector<TokenId>> sequences);

  std::int64_t tokens() const;

  // What the next layer's matrices read if these are its tensors. The text stays where it is.
  Result<LayerStatistics> observe(const LayerTensors& layer);
  // Takes the text through the next layer.
  Status advance(const LayerTensors& layer);

  // [tokens][hidden], sequence after sequence.
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
