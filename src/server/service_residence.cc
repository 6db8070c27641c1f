// How a model that is not used gives its memory back, and comes back for the next request.

#include <algorithm>

#include "base/check.h"
#include "server/service.h"

namespace protean {
namespace {

// Between looks at whether a model that is to sleep at once is still in use.
constexpr TimeNs kSoonNs = kNsPerS / 20;

}  // namespace

bool Service::may_sleep() const {
  return residence() == Residence::kAwake && state_ == ServerState::kReady && outstanding() == 0 &&
         wishes_.empty();
}

std::optional<TimeNs> Service::sleep_due_ns() const {
  const TimeNs stay_ns = engines_.stay_ns.value_or(limits_.sleep_idle_ns);
  if (stay_ns == kForeverNs || residence() != Residence::kAwake || state_ != ServerState::kReady) {
    return std::nullopt;
  }
  return may_sleep() ? engines_.used_ns() + stay_ns
                     : environment_.clock() + std::max(stay_ns, kSoonNs);
}

void Service::keep_loaded(TimeNs ns) {
  engines_.stay_ns = ns;
  on_stay_changed();
}

void Service::wake() {
  if (residence() == Residence::kAsleep || residence() == Residence::kFallingAsleep) {
    engines_.wake();
  }
}

void Service::show_residence(Residence residence) {
  metrics_.residence(residence);
  show_state(now_ns());
  if (residence == Residence::kWaking) {
    on_wanted();
  }
}

void Service::forget_all() {
  live_.clear();
  pending_.clear();
  wishes_.clear();
}

void Service::fall_asleep() {
  check(may_sleep(), "a model that is used does not sleep");
  engines_.fall_asleep();
}

void Service::woke(const Status& loaded) {
  if (loaded.ok()) {
    engines_.woke();
    return;
  }
  engines_.failed_to_wake();
  const Error error{ErrorCode::kUnavailable,
                    "the model sleeps and cannot be loaded: " + loaded.error().message};
  OutputBatch failed{.at_ns = now_ns(), .observation = fleet_.seen(ReplicaId{0})};
  for (const auto& [id, live] : live_) {
    failed.outputs.emplace_back(Refused{id, error});
  }
  deliver(failed);
  while (!wishes_.empty()) {
    answer_wish(wishes_.begin()->first, error);
  }
}

}  // namespace protean
