#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "fleet/joint_steps.h"

namespace protean {

// A replica's place in a fleet. Its engine changes when replicas become one group or a group
// splits.
struct Station {
  std::unique_ptr<HomeExecutor> executor;
  std::unique_ptr<Engine> engine;    // goes before its executor
  bool parked = false;               // another replica's engine serves for it; its own is empty
  std::string failure;               // why its devices are out of service; empty: they are not
  std::uint64_t steps_given_up = 0;  // what steps up to this one bring is not wanted any more
};

}  // namespace protean
