#pragma once

#include "contract/step.h"

namespace protean {

// Runs steps, in order, and reports each exactly once as a StepDone event. start() returns at once.
// The worker is the real one, sim has a modelled one.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void start(StepPlan plan) = 0;
};

}  // namespace protean
