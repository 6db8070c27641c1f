// Devices that fail: their replica's requests go on in others (KunServe section 4.4), or wait for
// devices that take their place.

#include <algorithm>
#include <utility>

#include "fleet/fleet.h"

namespace protean {

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
// is being parted or other devices are to come. Refuses a request that such a replica would refuse.
void Fleet::await_survivors(Arrival& arrival, TimeNs now_ns) {
  const bool some_work =
      std::any_of(stations_.begin(), stations_.end(),
                  [](const Station& station) { return station.failure.empty(); });
  // The last replica's engine is never a group's, and all replicas have the same limits.
  const Prospect expected = stations_.back().engine->prospect(arrival.request, now_ns);
  if (!some_work && !succession_.is_awaited()) {
    refuse(
        arrival.request.id,
        make_error(ErrorCode::kUnavailable,
                   "no replica is in service, because all devices of the model have failed: send "
                   "it again later, or start the server again"),
        now_ns);
  } else if (expected.refusal &&
             !(scaling_.forms_groups() && scaling_.could_grow_for(arrival.request))) {
    refuse(arrival.request.id, *expected.refusal, now_ns);
  } else {
    keep_waiting(arrival, std::nullopt, now_ns);
  }
}

// Takes replicas out of service whose devices have something to do and end nothing.
void Fleet::watch(TimeNs now_ns) {
  const TimeNs idle_ns = now_ns - now_ns_;
  const auto take_out_late = [&](ReplicaId late, TimeNs timeout_ns, std::vector<int> devices) {
    take_out({late, now_ns, fmt::format("has not answered for {} s", timeout_ns / kNsPerS),
              std::move(devices)});
  };
  succession_.watch(idle_ns, now_ns);
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    for (const ReplicaId late : watch_.late_steps(i, idle_ns, now_ns)) {
      take_out_late(late, watch_.timeout_ns(i), failing_devices(late));
    }
    if (watch_.prepares_late(i, idle_ns, now_ns)) {
      take_out_late(ReplicaId{static_cast<std::int32_t>(i)}, watch_.timeout_ns(i), {});
    }
  }
}

std::vector<int> Fleet::failing_devices(ReplicaId replica) const {
  return stations_[index_of(replica)].executor->own().failing_devices();
}

void Fleet::on(const DevicesFailed& failed, ReplicaId replica, TimeNs now_ns) {
  take_out({replica, now_ns, failed.why, failing_devices(replica)});
}

void Fleet::take_out(ReplicaFailure failure) {
  const ReplicaId replica = failure.replica;
  const TimeNs now_ns = failure.at_ns;
  Station& station = stations_[index_of(replica)];
  if (!station.failure.empty()) {
    return;
  }
  const std::vector<ReplicaId> engines = grouping_.engines_of(replica);
  for (const ReplicaId engine : engines) {
    migrations_.forget(engine, now_ns);
  }
  station.failure = failure.why;
  station.executor->own().give_up();
  watch_.failed(replica);
  for (const ReplicaId engine : engines) {
    stations_[index_of(engine)].steps_given_up = at(engine).last_step();
    for (MovedRequest& moved : at(engine).abandon(now_ns)) {
      owner_.erase(moved.sequence->asks.id);
      const TimeNs arrived_ns = moved.live.times.arrived_ns;
      held_.push_back({.request = {}, .arrived_ns = arrived_ns, .moved = std::move(moved)});
    }
  }
  for (HeldRequest& held : held_) {
    held.at.reset();  // any group may hold it, because runs of neighbours have gaps now
  }
  attempts_.held_anywhere();
  if (succession_.replace_failed(failure, now_ns)) {
    advance_succession(now_ns);
    return;
  }
  grouping_.fail(std::move(failure));
}

}  // namespace protean
