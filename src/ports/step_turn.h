#pragma once

#include "base/units.h"

namespace protean {

// Says when one device may begin its steps, if models of unequal priority share its CPUs. Any
// thread may call.
class StepTurn {
 public:
  virtual ~StepTurn() = default;

  // Tells that the device was given a step. Its model counts as having requests until rest().
  virtual void want() = 0;
  virtual void rest() = 0;
  // Waits until the device may begin a step. end() follows once the step is computed, in which the
  // device has waited for others of its group for `waited_ns`. It does not follow for a device that
  // was given up.
  virtual void begin() = 0;
  virtual void end(TimeNs waited_ns) = 0;
  // Returns true while begin() waits.
  virtual bool waits() const = 0;
  // Ends a wait. From now on the device waits for no turn, and no other device waits for it.
  virtual void let_go() = 0;
};

// The share of its devices' time that a model has. Any thread may call.
class TimeShare {
 public:
  virtual ~TimeShare() = default;

  // While a model on the same CPUs that has r times its priority has requests, the model computes
  // for at most 1 / r of that time.
  virtual int priority() const = 0;
  virtual void set_priority(int priority) = 0;
  // Returns the seconds for which its devices have computed steps that have ended, all together.
  virtual double step_seconds() const = 0;
};

inline constexpr int kMostPriority = 16;

}  // namespace protean
