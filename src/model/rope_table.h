#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "contract/model_spec.h"
#include "device/cpu/elementwise.h"

namespace protean {

// Returns the angle per position of each rotated pair after the spec's scaling, for a model that is
// served with this many positions.
std::vector<double> rope_frequencies(const RopeSpec& spec, int head_dim, int positions = 1);

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

// The tables of the layers of a model.
struct RopeTables {
  cpu::RopeTable plain;
  cpu::RopeTable windowed;  // for layers with a window

  // Returns the table of a layer of the model.
  const cpu::RopeTable& of(const ModelSpec& spec, int layer) const {
    return spec.attention.window_of(layer) > 0 ? windowed : plain;
  }
};

// Owns the tables of a model.
class RotaryTables {
 public:
  RotaryTables(const ModelSpec& spec, int positions);

  RopeTables view() const;
  std::int64_t bytes() const;

 private:
  RotaryTable plain_;
  std::optional<RotaryTable> windowed_;
};

}  // namespace protean
