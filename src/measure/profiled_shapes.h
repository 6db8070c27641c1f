#pragma once

#include <string>
#include <vector>

#include "cost/step_shape.h"

namespace protean {

struct NamedShape {
  std::string name;
  StepShape shape;
  bool fitted = false;
};

// Returns shapes that differ in everything that a term of the cost model depends on: rows,
// contexts, sequences, and if logits are needed. `longest` is a power of two.
std::vector<NamedShape> fitted_shapes(int longest);

// Returns shapes between and beyond the fitted ones.
std::vector<NamedShape> held_out_shapes(int longest);

}  // namespace protean
