#include "control/fair_turns.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {

TurnId FairTurns::add(std::vector<int> cpus, int priority) {
  std::sort(cpus.begin(), cpus.end());
  const TurnId id{++last_id_};
  devices_[id].cpus = std::move(cpus);
  set_priority(id, priority);
  return id;
}

void FairTurns::set_priority(TurnId id, int priority) {
  check(priority >= 1, "a priority is at least 1");
  devices_.at(id).priority = priority;
}

bool FairTurns::share_a_cpu(const Device& one, const Device& other) {
  return one.cpus.empty() || other.cpus.empty() ||
         std::find_first_of(one.cpus.begin(), one.cpus.end(), other.cpus.begin(),
                            other.cpus.end()) != one.cpus.end();
}

TimeNs FairTurns::opens_ns(TurnId id, TimeNs now_ns) const {
  const Device& own = devices_.at(id);
  int highest = own.priority;
  for (const auto& [other_id, other] : devices_) {
    if (other.wants && other.priority > highest && share_a_cpu(own, other)) {
      highest = other.priority;
    }
  }
  if (highest == own.priority) {
    return now_ns;
  }
  const TimeNs share_ns = own.began_ns + own.took_ns * highest / own.priority;
  return std::max(now_ns, std::min(share_ns, own.ended_ns + kLongestWaitNs));
}

void FairTurns::begin(TurnId id, TimeNs now_ns) {
  devices_.at(id).began_ns = now_ns;
}

void FairTurns::end(TurnId id, TimeNs now_ns, TimeNs waited_ns) {
  Device& device = devices_.at(id);
  device.ended_ns = now_ns;
  device.took_ns = std::max<TimeNs>(0, now_ns - device.began_ns - waited_ns);
  device.computed_ns += device.took_ns;
}

}  // namespace protean
