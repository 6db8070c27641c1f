// How models leave devices that have failed.

#include <string>
#include <utility>

#include "server/residents.h"

namespace protean {

// Has models with an intent placed anew whose devices have failed. A second copy that is being
// loaded takes the model's place anyway, and is looked at then.
void Residents::look_at_failures() {
  if (models_.state() != ServerState::kReady) {
    return;
  }
  for (Service* const service : models_.services()) {
    const std::size_t place = place_of(*service);
    const ReplicaFailure* const failure = service->failure();
    std::string intent = hosts_[place]->intent;
    IntentChange* const change = change_of(place);
    const bool morphs = change != nullptr && change->state == IntentChange::State::kMorphing;
    if (failure == nullptr || intent.empty() || service->residence() != Residence::kAwake ||
        (change != nullptr && !morphs)) {
      continue;
    }
    if (morphs) {
      intent = change->wish.intent;
      loader_->forget_replacement(place);
    }
    service->on_wanted = [this, place] { loader_->load(place); };
    service->fall_asleep();
    loader_->lose(place, *failure);
    begin_change(*service, {.intent = std::move(intent)});
  }
}

}  // namespace protean
