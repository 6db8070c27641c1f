#pragma once

#include <string>
#include <vector>

#include "cost/step_sizes.h"

namespace protean {

struct NamedStep {
  std::string name;
  StepSizes sizes;
  bool fitted = false;
};

// Returns steps that differ in everything that a term of the cost model depends on: rows,
// contexts, sequences, and if logits are needed. `longest` is a power of two.
std::vector<NamedStep> fitted_steps(int longest);

// Returns steps between and beyond the fitted ones.
std::vector<NamedStep> held_out_steps(int longest);

}  // namespace protean
