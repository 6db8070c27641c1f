#pragma once

#include <cstdint>

#include "contract/layer_precision.h"
#include "contract/model_spec.h"

namespace protean {

// A layer is packed in units, as many as the largest TP degree that its form may ever have: a
// device at TP t holds `largest / t` whole ones, so a change of degree hands over units and takes
// none apart (AMOEBA section 3.2). A unit is complete in itself: its KV heads with the query heads
// that read them, its neurons of the MLP, and the norms, which all units have.

// The units [first, first + count) of `of`.
struct TpUnits {
  int first = 0;
  int count = 1;
  int of = 1;  // a power of two that divides the KV heads

  bool whole() const { return of == 1; }
  friend bool operator==(const TpUnits&, const TpUnits&) = default;
};

// How many a part is packed in, where halves are in `units`: whoever has some of the layers' has
// all of the tables.
constexpr int units_of(ModelPart part, int units) {
  return part == ModelPart::kTables ? 1 : units;
}

// What one of `units` is to the kernels: the model with a unit's heads and neurons. Neurons are
// padded with zeros to as many in each unit, a multiple of what kernels and stored groups take at
// once, so that all units have one size. The whole model where there is one unit.
ModelSpec unit_spec(const ModelSpec& spec, int units);

// The neurons of the model that a unit holds; behind them its padding.
struct NeuronRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
NeuronRange neurons_of(const ModelSpec& spec, int unit, int units);

}  // namespace protean
