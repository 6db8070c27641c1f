// How models leave devices that have failed.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "server/residents.h"

namespace protean {

// Returns the intent for which a model with failed devices is to be planned anew; nothing if a
// change of its intent must end first. One that has not begun to change what serves is taken back:
// it may have planned with these devices.
std::optional<IntentWish> Residents::wish_to_place_anew(std::size_t place) {
  const auto found = changes_.find(hosts_[place]->service.model().names.front());
  if (found == changes_.end() || found->second.former != place) {
    return IntentWish{.intent = hosts_[place]->intent};
  }
  IntentChange& change = found->second;
  IntentWish wish = change.wish;
  wish.move.reset();
  if (change_of(place) == nullptr) {
    return std::exchange(change.gives_way, false) ? wish
                                                  : IntentWish{.intent = hosts_[place]->intent};
  }
  if (change.state == IntentChange::State::kMorphing) {
    loader_->forget_replacement(place);
    return wish;
  }
  if (!std::exchange(change.taken_back, true)) {
    change.gives_way = true;
    loader_->take_back_replacement(place);
  }
  return std::nullopt;
}

// Has models with an intent placed anew whose devices have failed. Their requests wait for that. A
// server that drains needs only models that have requests.
void Residents::look_at_failures() {
  for (Service* const service : models_.services()) {
    const std::size_t place = place_of(*service);
    const ReplicaFailure* const failure = service->failure();
    if (failure == nullptr || hosts_[place]->intent.empty() ||
        service->residence() != Residence::kAwake ||
        (service->state() == ServerState::kDraining && service->outstanding() == 0)) {
      continue;
    }
    auto wish = wish_to_place_anew(place);
    if (!wish) {
      continue;
    }
    wish->requests_wait = true;
    service->on_wanted = [this, place] { loader_->load(place); };
    service->fall_asleep();
    service->wake();  // as soon as it has a place
    loader_->lose(place, *failure);
    begin_change(*service, *std::move(wish));
    change_of(place)->how = {.in_place = std::nullopt,
                             .why = fmt::format("a device {}", failure->why),
                             .placed_anew = true};
  }
}

}  // namespace protean
