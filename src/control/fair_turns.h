#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/ids.h"
#include "base/units.h"

namespace protean {

using TurnId = Id<struct TurnTag, std::int32_t>;  // names one device of one model

// Says when the devices of several models may begin steps on CPUs that they share in time.
//
// While a device with a CPU in common has requests and a priority that is r times as high, a device
// begins its next step no sooner than r * d after it began the last one, in which it computed for
// d. So it computes for at most 1 / r of that time, unless that would have it wait for longer than
// kLongestWaitNs: a process may have stood still in the middle of a step. No wait depends on the
// end of another device's step.
class FairTurns {
 public:
  static constexpr TimeNs kLongestWaitNs = 10 * kNsPerS;

  // `cpus` may be empty, which means all CPUs. A priority is at least 1.
  TurnId add(std::vector<int> cpus, int priority);
  void remove(TurnId id) { devices_.erase(id); }
  void set_priority(TurnId id, int priority);

  // The device's model has requests from now on, or has none.
  void want(TurnId id) { devices_.at(id).wants = true; }
  void rest(TurnId id) { devices_.at(id).wants = false; }

  // Returns when the device may begin a step if nothing changes until then; now_ns: at once.
  TimeNs opens_ns(TurnId id, TimeNs now_ns) const;
  // The device begins a step, and ends it before it begins another. `waited_ns`, for which it
  // waited for others of its group, does not count as computed: else the device that began first
  // would begin the next step later, by more at each step, and the others would wait for it.
  void begin(TurnId id, TimeNs now_ns);
  void end(TurnId id, TimeNs now_ns, TimeNs waited_ns = 0);
  // Returns for how long it has computed the steps that have ended. One under way may hang.
  TimeNs computed_ns(TurnId id) const { return devices_.at(id).computed_ns; }

 private:
  struct Device {
    std::vector<int> cpus;  // in order; empty: all
    int priority = 1;
    bool wants = false;
    TimeNs began_ns = 0;     // the latest step
    TimeNs ended_ns = 0;     // the latest step that has ended
    TimeNs took_ns = 0;      // the compute of that step
    TimeNs computed_ns = 0;  // of all steps that have ended
  };
  static bool share_a_cpu(const Device& one, const Device& other);

  std::map<TurnId, Device> devices_;
  std::int32_t last_id_ = 0;
};

}  // namespace protean
