// How a rank changes what it holds and the group that it is in.

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
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
  const auto index = static_cast<std::size_t>(device);
  const GroupChange::Hold& hold = *change.hold;
  KvShare& share = *hold.shares[index];
  share.finish(team_);
  meet(change, 2);  // all but devices that have failed have finished
  for (const std::unique_ptr<KvShare>& other : hold.shares) {
    other->await_chunks();
  }
  const int heads = spec_.attention.kv_heads / weights_.shards;
  kv_->set_layer(hold.step.layer, heads * hold.step.runs[index].count, share.move().homes,
                 share.move().places);
}

void Rank::change(const GroupChange& change, int device, ShardMemory& memory) {
  // After this, no device reads what this one showed or computes a step in the old formation.
  meet(change, 1);
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
