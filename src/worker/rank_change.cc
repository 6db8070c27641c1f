// How a rank changes what it holds and the group that it is in.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "worker/kv_move.h"
#include "worker/rank.h"

namespace protean {

// Waits until all devices of the group have come to this point of the change.
void Rank::meet(const GroupChange& change, std::uint32_t point) {
  const cpu::Moment moment{change.number, point};
  cpu::GroupProgress& progress = place_.fabric->progress();
  progress.reach(place_.on_fabric, moment);
  for (const int device : change.meeting) {
    progress.wait(place_.on_fabric, device, moment);
  }
}

void Rank::move_kv_of(const GroupChange& change, int device) {
  const GroupChange::Hold& hold = *change.hold;
  const int layer = hold.step.layer;
  KvMove move = kv_move(hold.before, change.after, layer, device);
  const ShardRun& before =
      hold.before.form.group[static_cast<std::size_t>(device)].of(layer, Component::kAttention);
  const ShardRun& after = hold.step.runs[static_cast<std::size_t>(device)];
  const int heads = spec_.attention.kv_heads / weights_.shards;
  const std::int64_t slot = std::int64_t{heads} * std::max(before.count, after.count) *
                            kv_->layers()[static_cast<std::size_t>(layer)].slot_bytes();
  protean::move_kv(
      move,
      {.layer = layer,
       .stores = hold.stores,
       .live = hold.live,
       .slot_bytes = slot,
       .device = device,
       .has_failed = [this] { return place_.fabric->progress().failed(place_.on_fabric); }},
      team_);
  meet(change, 2);
  kv_->set_layer(layer, heads * after.count, move.homes, std::move(move.places));
}

void Rank::await_readers() const {
  if (place_.fabric != nullptr) {
    place_.fabric->progress().await_readers(place_.on_fabric);
  }
}

void Rank::change(const GroupChange& change, int device, ShardMemory& memory) {
  // After this, no device reads what this one showed or computes a step in the old formation.
  meet(change, 1);
  // If the group has lost a device, another one may still read a block for a copy called off.
  await_readers();
  if (change.hold) {
    const auto& [layer, component, runs] = change.hold->step;
    if (component == Component::kAttention) {
      move_kv_of(change, device);
    }
    pages_.hold(weights_, {layer, component, change.hold->precision},
                runs[static_cast<std::size_t>(device)], memory);
  }
  if (change.kv == GroupChange::Kv::kUnifies) {
    kv_->unify(change.homes_before);
  } else if (change.kv == GroupChange::Kv::kDivides) {
    kv_->divide(change.after.home_count());
  } else if (!change.hold) {
    kv_->join(change.after.home_count());
  }
  follow(change.routes[static_cast<std::size_t>(device)], change.after.devices);
  place_.fabric->progress().reach(place_.on_fabric, {change.number, cpu::kStepEnd});
}

}  // namespace protean
