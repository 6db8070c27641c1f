#pragma once

#include <memory>

#include "engine/engine.h"
#include "fleet/joint_steps.h"

namespace protean {

// A replica's place in a fleet. Its engine changes when replicas become one group or a group
// splits.
struct Station {
  std::unique_ptr<HomeExecutor> executor;
  std::unique_ptr<Engine> engine;  // goes before its executor
  bool parked = false;             // another replica's engine serves for it; its own is empty
};

}  // namespace protean
