// How a rank changes what it holds and the group that it is in.

#include <algorithm>
#include <chrono>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "worker/rank.h"

namespace protean {
namespace {

constexpr std::chrono::seconds kLongestChunk(1);
constexpr std::chrono::microseconds kLookAtChunks(100);

}  // namespace

// Waits until all devices of the group have come to this point of the change.
void Rank::meet(const GroupChange& change, std::uint32_t point) {
  const cpu::Moment moment{change.number, point};
  cpu::GroupProgress& progress = place_.fabric->progress();
  progress.reach(place_.on_fabric, moment);
  for (const int device : change.meeting) {
    progress.wait(place_.on_fabric, device, moment);
  }
}

// A thread of a device that has failed may hang in a chunk, and write here once it goes on. Moves
// the layer's array out of its reach. If the system refuses that, waits a while for the thread.
void Rank::avoid_late_writes(const GroupChange::Hold& hold) {
  const auto in_chunk = [&hold] {
    return std::any_of(hold.shares.begin(), hold.shares.end(),
                       [](const auto& share) { return share->in_chunk(); });
  };
  const cpu::GroupProgress& progress = place_.fabric->progress();
  if (!in_chunk() || progress.failed(place_.on_fabric)) {  // its own array serves no more
    return;
  }
  Status moved;
  std::binary_semaphore tried(0);
  background_->post([&] {  // which may attach pages of the layer until then
    moved = kv_->leave_addresses(hold.step.layer);
    tried.release();
  });
  tried.acquire();
  const auto until = std::chrono::steady_clock::now() + kLongestChunk;
  while (!moved.ok() && in_chunk() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kLookAtChunks);
  }
  if (!moved.ok() && in_chunk()) {
    log::warning("a device that hangs may still write to the KV of others: {}",
                 moved.error().message);
  }
}

void Rank::move_kv_of(const GroupChange& change, int device) {
  const auto index = static_cast<std::size_t>(device);
  const GroupChange::Hold& hold = *change.hold;
  KvShare& share = *hold.shares[index];
  share.finish(team_);
  meet(change, 2);  // all but devices that have failed have finished
  avoid_late_writes(hold);
  const int heads = spec_.attention.kv_heads / weights_.shards;
  kv_->set_layer(hold.step.layer, heads * hold.step.runs[index].count, share.move().others,
                 share.move().places);
}

// A device that has failed may hang while it hands rows over to this one. From here on others do so
// in another mailbox.
void Rank::leave_mailbox(const GroupChange& change) {
  const cpu::GroupProgress& progress = place_.fabric->progress();
  if (std::any_of(change.meeting.begin(), change.meeting.end(),
                  [&](int device) { return progress.failed(device); })) {
    const Status replaced = place_.fabric->mailboxes().replace(place_.on_fabric);
    if (!replaced) {
      log::warning("a device that hangs may still write rows to others: {}",
                   replaced.error().message);
    }
  }
  meet(change, 2);
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
    kv_->unify(*change.homes);
  } else if (change.kv == GroupChange::Kv::kDivides) {
    kv_->divide(*change.homes, change.after.home_with(device));
  } else if (!change.hold) {
    kv_->join(change.after.home_count());
    leave_mailbox(change);
  }
  follow(change.routes[static_cast<std::size_t>(device)], change.after.devices);
  place_.fabric->progress().reach(place_.on_fabric, {change.number, cpu::kStepEnd});
}

}  // namespace protean
