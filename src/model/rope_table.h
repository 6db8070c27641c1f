#pragma once

#include <vector>

#include "contract/model_spec.h"
#include "device/cpu/elementwise.h"

namespace protean {

// Angle per position of each rotated pair of a head, after the spec's scaling: head_dim / 2 values.
std::vector<double> rope_frequencies(const RopeSpec& spec, int head_dim);

// Owns the cosines and sines of positions [0, positions), computed in double and kept as f32: the
// angle of a late position loses too much in f32. Immutable, so any thread may read it.
class RotaryTable {
 public:
  RotaryTable(const RopeSpec& spec, int head_dim, int positions);

  cpu::RopeTable view() const;
  std::int64_t bytes() const;

 private:
  int half_ = 0;
  bool adjacent_ = false;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace protean
