#include "fleet/joint_steps.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {

void JointSteps::dispatch(TimeNs now_ns) {
  const auto any_waits = [this] {
    return std::any_of(waiting_.begin(), waiting_.end(),
                       [](const auto& plans) { return !plans.empty(); });
  };
  while (std::ssize(in_flight_) < at_once_ && any_waits()) {
    if (in_flight_.empty()) {
      pace_.step_begun(now_ns);
    }
    std::vector<StepPlan> plans(waiting_.size());
    std::vector<bool>& not_done = in_flight_.emplace_back(waiting_.size(), false);
    for (std::size_t home = 0; home < waiting_.size(); ++home) {
      if (!waiting_[home].empty()) {
        plans[home] = std::move(waiting_[home].front());
        waiting_[home].pop_front();
        not_done[home] = true;
      }
    }
    devices_.start(group_, std::move(plans));
  }
}

// A home's steps end in order, so this is the end of its oldest one.
void JointSteps::done(std::size_t home, TimeNs now_ns) {
  const auto step = std::find_if(in_flight_.begin(), in_flight_.end(),
                                 [home](const auto& not_done) { return not_done[home]; });
  check(step != in_flight_.end(), "only a step in flight can end");
  (*step)[home] = false;
  if (std::none_of(step->begin(), step->end(), [](bool waits) { return waits; })) {
    in_flight_.erase(step);
    pace_.step_done(now_ns);
  }
}

bool JointSteps::quiet() const {
  return in_flight_.empty() && std::all_of(waiting_.begin(), waiting_.end(),
                                           [](const auto& plans) { return plans.empty(); });
}

}  // namespace protean
