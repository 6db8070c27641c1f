#pragma once

#include <variant>

#include "base/ids.h"
#include "base/units.h"
#include "contract/request.h"
#include "contract/step.h"

namespace protean {

// All that can happen to an engine. The server sends them through a queue, the simulator from a
// heap; the engine cannot tell which.
struct Arrival {
  Request request;
};
struct Cancel {
  RequestId request;
};
struct StepDone {
  StepResult result;
};
struct Tick {};  // time has passed: deadlines are looked at

struct Event {
  TimeNs at_ns = 0;
  std::variant<Arrival, Cancel, StepDone, Tick> what;
};

}  // namespace protean
