// How a model that is not used gives its memory back, and comes back for the next request.

#include "base/check.h"
#include "server/service.h"

namespace protean {

bool Service::may_sleep() const {
  return residence() == Residence::kAwake && state_ == ServerState::kReady && outstanding() == 0 &&
         wishes_.empty();
}

std::optional<TimeNs> Service::sleep_due_ns() const {
  if (limits_.sleep_idle_ns == 0 || residence() != Residence::kAwake ||
      state_ != ServerState::kReady) {
    return std::nullopt;
  }
  return (may_sleep() ? engines_.used_ns() : environment_.clock()) + limits_.sleep_idle_ns;
}

void Service::show_residence(Residence residence) {
  metrics_.residence(residence);
  feed_.state(state_json(ReplicaId{0}), form(ReplicaId{0}), now_ns());
  if (residence == Residence::kWaking) {
    on_wanted();
  }
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
  OutputBatch failed{.at_ns = now_ns(), .observation = seen_.front()};
  for (const auto& [id, live] : live_) {
    failed.outputs.push_back(Refused{id, error});
  }
  deliver(failed);
  while (!wishes_.empty()) {
    answer_wish(wishes_.begin()->first, error);
  }
}

}  // namespace protean
