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

// Statistics of what the matrices of one layer read, by LayerInput.
struct LayerStatistics {
  explicit LayerStatistics(const ModelSpec& spec);

  InputStatistics& of(LayerInput which) { return inputs[static_cast<std::size_t>(which)]; }

  std::vector<InputStatistics> inputs;
};

// Runs a text through a model one layer at a time, so that memory holds no more than one layer's
// weights. Keeps the residual stream of every token before the next layer. Used by one thread;
// borrows the team.
class Calibration {
 public:
  // Needs at least one sequence. No sequence is empty, and all tokens belong to the vocabulary.
  static Result<Calibration> create(cpu::Team& team, const Checkpoint& checkpoint,
                                    std::vector<std::vector<TokenId>> sequences);

  std::int64_t tokens() const;

  // Returns statistics of what the next layer's matrices read if `layer` has its tensors. Does not
  // advance.
  Result<LayerStatistics> observe(const LayerTensors& layer);
  // Runs the text through the next layer.
  Status advance(const LayerTensors& layer);

  // The residual stream: [tokens][hidden], sequence after sequence.
  std::span<const float> residual() const { return residual_; }

 private:
  Calibration(cpu::Team& team, const ModelSpec& spec) : team_(&team), spec_(spec) {}
  Status run(const LayerTensors& layer, LayerStatistics* statistics);

  cpu::Team* team_;
  ModelSpec spec_;
  std::vector<std::vector<TokenId>> sequences_;
  std::vector<float> residual_;
  std::unique_ptr<RotaryTables> rope_;
};

}  // namespace protean
