#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "device/cpu/team.h"
#include "model/checkpoint.h"

namespace protean {

// A model of any spec with random weights, which are computed when they are read. Weights are
// nearly normal and scaled so that activations keep their size from layer to layer and every layer
// affects the logits. A seed gives the same weights in any order of reading. Borrows the team.
class RandomCheckpoint final : public Checkpoint {
 public:
  RandomCheckpoint(cpu::Team& team, ModelSpec spec, std::uint64_t seed)
      : team_(team), spec_(std::move(spec)), seed_(seed) {}

  const ModelSpec& spec() const override { return spec_; }
  const GenerationDefaults& generation() const override { return generation_; }
  std::string description() const override { return "random"; }
  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override;
  void release(TensorRole, int) const override {}

 private:
  cpu::Team& team_;
  ModelSpec spec_;
  GenerationDefaults generation_;
  std::uint64_t seed_;
};

}  // namespace protean
