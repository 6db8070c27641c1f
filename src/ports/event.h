#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/morph.h"
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
// Executor::prepare() is through.
struct MorphReady {
  MorphId id;
  std::optional<Error> failure;
  std::string remark;  // for people: what was amiss though it went well
};
// Executor::commit() is through.
struct MorphDone {
  MorphId id;
  std::int64_t pages_free = 0;  // of the device, now
};
// An operator asks for a form; answered by one WishAnswered.
struct WantForm {
  std::uint64_t wish_id = 0;
  FormWish wish;
};
struct Tick {};  // time has passed: deadlines are looked at

struct Event {
  TimeNs at_ns = 0;
  std::variant<Arrival, Cancel, StepDone, MorphReady, MorphDone, WantForm, Tick> what;
};

}  // namespace protean
