#pragma once

#include <vector>

#include "contract/model_spec.h"
#include "device/cpu/elementwise.h"

namespace protean {

// Returns the angle per position of each of the head_dim / 2 rotated pairs, after the spec's
// scaling.
std::vector<double> rope_frequencies(const RopeSpec& spec, int head_dim);

// Owns the cosines and sines of positions [0, positions) as f32. Computes them in double, because
// the angle of a late position loses too much in f32. Immutable.
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
