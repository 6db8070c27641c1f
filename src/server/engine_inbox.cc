#include "server/engine_inbox.h"

#include "base/check.h"

namespace protean {

bool EngineInbox::try_tell(Event event) {
  use();
  if (residence_ == Residence::kAwake) {
    return inbox_.try_push(std::move(event));
  }
  keep(std::move(event));  // bounded: Service refuses requests beyond max_outstanding
  return true;
}

void EngineInbox::tell(Event event) {
  use();
  if (residence_ == Residence::kAwake) {
    inbox_.push(std::move(event));
  } else {
    keep(std::move(event));
  }
}

void EngineInbox::keep(Event event) {
  kept_.push_back(std::move(event));
  if (residence_ == Residence::kAsleep) {
    wake();
  }
}

void EngineInbox::become(Residence residence) {
  residence_ = residence;
  on_change(residence);
}

void EngineInbox::fall_asleep() {
  check(residence_ == Residence::kAwake, "only a model that is awake falls asleep");
  stay_ns.reset();
  become(Residence::kFallingAsleep);
}

void EngineInbox::fell_asleep() {
  unloaded_ns_ = clock_();
  become(Residence::kAsleep);
  if (std::exchange(wanted_, false) || !kept_.empty()) {
    wake();
  }
}

void EngineInbox::wake() {
  if (residence_ == Residence::kFallingAsleep) {
    wanted_ = true;
    return;
  }
  check(residence_ == Residence::kAsleep, "only a model that sleeps is woken");
  become(Residence::kWaking);
}

void EngineInbox::woke(std::vector<Event> first) {
  use();
  become(Residence::kAwake);
  for (Event& event : first) {
    inbox_.push(std::move(event));
  }
  for (Event& event : std::exchange(kept_, {})) {
    inbox_.push(std::move(event));
  }
}

void EngineInbox::failed_to_wake() {
  kept_.clear();
  become(Residence::kAsleep);
}

}  // namespace protean
