// Devices that fail: their replica's requests go on in others (KunServe section 4.4).

#include <algorithm>
#include <iterator>
#include <utility>

#include "fleet/fleet.h"

namespace protean {

// Returns true if the replica's engine lives on. The engine of a broken group does until the group
// has parted.
bool Fleet::has_deadlines(std::size_t index) const {
  const ReplicaId replica{static_cast<std::int32_t>(index)};
  const Station& station = stations_[index];
  return !station.parked &&
         (station.failure.empty() || grouping_.is_group(replica) || grouping_.changes(replica));
}

// Returns true if the requests of the step have gone on elsewhere.
bool Fleet::is_late(const StepDone& done, ReplicaId replica) const {
  return done.result.id.value <= stations_[index_of(replica)].steps_given_up;
}

void Fleet::refuse(RequestId request, Error why, TimeNs now_ns) {
  OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
  batch.outputs.emplace_back(Refused{request, std::move(why)});
  sink_.emit(std::move(batch));
}

// Holds a request that arrives while no replica is in service, if the group of some that still work
// is being parted. Refuses a request that such a replica would refuse.
void Fleet::await_survivors(Arrival& arrival, TimeNs now_ns) {
  const bool some_work =
      std::any_of(stations_.begin(), stations_.end(),
                  [](const Station& station) { return station.failure.empty(); });
  // The last replica's engine is never a group's, and all replicas have the same limits.
  const Prospect expected = stations_.back().engine->prospect(arrival.request, now_ns);
  if (!some_work) {
    refuse(arrival.request.id,
           make_error(ErrorCode::kUnavailable,
                      "no replica is in service, because all devices have failed: start the server "
                      "again"),
           now_ns);
  } else if (expected.refusal &&
             !(scaling_.forms_groups() && scaling_.could_grow_for(arrival.request))) {
    refuse(arrival.request.id, *expected.refusal, now_ns);
  } else {
    keep_waiting(arrival, std::nullopt, now_ns);
  }
}

// Returns true while the replica's executor has something to end that is watched.
bool Fleet::awaits_devices(std::size_t index) const {
  const ReplicaId replica{static_cast<std::int32_t>(index)};
  return watches_[index].timeout_ns != 0 && has_deadlines(index) &&
         (migrations_.copies_to(replica) || stations_[index].engine->awaits_executor() ||
          grouping_.committing(replica));
}

// Finds devices that have something to do and end nothing, and takes their replicas out of service.
// If the whole fleet was not called for long, such as in a stopped process, no device is blamed.
void Fleet::watch(TimeNs now_ns) {
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    watch_steps(i, now_ns);
    watch_preparations(i, now_ns);
  }
}

void Fleet::watch_steps(std::size_t index, TimeNs now_ns) {
  Watch& watch = watches_[index];
  if (!awaits_devices(index)) {
    watch.since_ns = -1;
    return;
  }
  const bool paused =
      now_ns - now_ns_ > watch.timeout_ns / 2 || stations_[index].executor->own().awaits_turn();
  watch.since_ns = watch.since_ns < 0 || paused ? now_ns : watch.since_ns;
  if (now_ns - watch.since_ns < watch.timeout_ns) {
    return;
  }
  watch.since_ns = -1;
  const std::vector<ReplicaId> suspects =
      grouping_.devices_of(ReplicaId{static_cast<std::int32_t>(index)});
  std::vector<ReplicaId> guilty;
  std::copy_if(suspects.begin(), suspects.end(), std::back_inserter(guilty), [this](ReplicaId one) {
    const Station& station = stations_[index_of(one)];
    return station.failure.empty() && station.executor->own().holds_up();
  });
  for (const ReplicaId one : guilty.empty() ? suspects : guilty) {
    take_out_late(one, watch.timeout_ns, now_ns);
  }
}

// Returns nothing unless the replica's own devices are watched and prepare something, whichever
// engine asked for it.
std::optional<std::uint64_t> Fleet::pieces_prepared(std::size_t index) const {
  const Station& station = stations_[index];
  const bool watched = watches_[index].timeout_ns != 0 && station.failure.empty();
  return watched ? station.executor->own().pieces_prepared() : std::nullopt;
}

void Fleet::watch_preparations(std::size_t index, TimeNs now_ns) {
  Watch& watch = watches_[index];
  const auto pieces = pieces_prepared(index);
  const bool paused = now_ns - now_ns_ > watch.timeout_ns / 2;
  if (!pieces || pieces != watch.pieces || paused) {
    watch.pieces = pieces;
    watch.pieces_since_ns = now_ns;
  } else if (now_ns - watch.pieces_since_ns >= watch.timeout_ns) {
    take_out_late(ReplicaId{static_cast<std::int32_t>(index)}, watch.timeout_ns, now_ns);
  }
}

void Fleet::take_out_late(ReplicaId replica, TimeNs timeout_ns, TimeNs now_ns) {
  take_out(replica, fmt::format("has not answered for {} s", timeout_ns / kNsPerS), now_ns);
}

void Fleet::on(const DevicesFailed& failed, ReplicaId replica, TimeNs now_ns) {
  take_out(replica, failed.why, now_ns);
}

void Fleet::take_out(ReplicaId replica, const std::string& why, TimeNs now_ns) {
  Station& station = stations_[index_of(replica)];
  if (!station.failure.empty()) {
    return;
  }
  const std::vector<ReplicaId> engines = grouping_.engines_of(replica);
  for (const ReplicaId engine : engines) {
    migrations_.forget(engine, now_ns);
  }
  station.failure = why;
  station.executor->own().give_up();
  for (const ReplicaId engine : engines) {
    stations_[index_of(engine)].steps_given_up = at(engine).last_step();
    watches_[index_of(engine)].since_ns = -1;
    for (MovedRequest& moved : at(engine).abandon(now_ns)) {
      owner_.erase(moved.sequence->asks.id);
      const TimeNs arrived_ns = moved.live.times.arrived_ns;
      held_.push_back({.request = {}, .arrived_ns = arrived_ns, .moved = std::move(moved)});
    }
  }
  for (HeldRequest& held : held_) {
    held.at.reset();  // any group may hold it, because runs of neighbours have gaps now
  }
  grouping_.fail(replica, why, now_ns);
}

}  // namespace protean
