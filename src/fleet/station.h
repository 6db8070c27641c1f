#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/units.h"
#include "contract/form.h"
#include "engine/engine.h"
#include "fleet/joint_steps.h"
#include "ports/executor.h"

namespace protean {

// One replica of a fleet. The executor must outlive the fleet.
struct Member {
  EngineConfig engine;  // its ReplicaId is given by the fleet
  Executor* executor = nullptr;
  // If nothing ends for so long although the executor has something to do, its devices have failed;
  // 0: they never fail.
  TimeNs device_timeout_ns = 0;
  Form form = {};  // as loaded; matters only where one replica succeeds another
};

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
