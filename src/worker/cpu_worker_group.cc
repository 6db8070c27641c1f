// How workers join and part (ports/device_groups.h).

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "worker/cpu_worker.h"
#include "worker/kv_move.h"

namespace protean {
namespace {

// Returns the indices [first, first + count).
Copy indices(std::size_t first, std::size_t count) {
  Copy all(count);
  std::iota(all.begin(), all.end(), static_cast<int>(first));
  return all;
}

// Returns null for a device alone, which waits for no other.
std::shared_ptr<UseMeter> meter_of(const std::vector<DeviceWorker*>& devices) {
  return devices.size() > 1 ? std::make_shared<UseMeter>(static_cast<int>(devices.size()))
                            : nullptr;
}

}  // namespace

// Makes the group of the worker's own devices alone.
void CpuWorker::stand_alone(Form form) {
  Group own{.homes = {this}, .members = {this}, .devices = {}, .formation = {}, .apart = {}};
  own.formation = {std::move(form), {}, {indices(0, devices_.size())}};
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    own.devices.push_back(devices_[device].get());
    own.formation.devices.push_back(first_device_ + static_cast<int>(device));
  }
  own.meter = meter_of(own.devices);
  groups_ = {std::move(own)};
}

// The worker's devices report to another leader, among whose devices they have moved on.
void CpuWorker::follow(CpuWorker& leader, int further) {
  leader_ = &leader;
  first_in_group_ += further;
}

void CpuWorker::join(const std::vector<CpuWorker*>& others) {
  const auto rests = [](const CpuWorker& worker) {
    return worker.leader_ == &worker && worker.steps_.empty() &&
           worker.group().formation.home_count() == 1;
  };
  check(fabric_ != nullptr && rests(*this), "workers at rest join");
  const std::lock_guard lock(order_);
  Group joined = group();
  joined.homes = {this};
  joined.apart = {};
  joined.least_kv_blocks = 0;
  joined.meter = nullptr;
  Formation& formation = joined.formation;
  std::vector<const Formation*> joining = {&group().formation};
  formation.home_blocks = {formation.form.kv.blocks};
  for (CpuWorker* const other : others) {
    const Group& added = other->group();
    const Form& form = added.formation.form;
    check(rests(*other) && other->fabric_ == fabric_, "workers at rest join");
    const KvForm& kv = formation.form.kv;
    check(equally_precise(form, formation.form) && form.kv.precision == kv.precision &&
              form.kv.block_tokens == kv.block_tokens,
          "workers of equal precisions join");
    joining.push_back(&added.formation);
    formation.home_blocks.push_back(form.kv.blocks);
    for (CpuWorker* const member : added.members) {
      member->follow(*this, static_cast<int>(joined.devices.size()));
      joined.members.push_back(member);
    }
    formation.homes.push_back(indices(joined.devices.size(), added.devices.size()));
    formation.form.group.insert(formation.form.group.end(), form.group.begin(), form.group.end());
    formation.form.kv.blocks += form.kv.blocks;
    formation.devices.insert(formation.devices.end(), added.formation.devices.begin(),
                             added.formation.devices.end());
    joined.devices.insert(joined.devices.end(), added.devices.begin(), added.devices.end());
    joined.homes.push_back(other);
    number_ = std::max(number_, other->number_);
  }
  formation.home_places = places_of_joined(joining);
  groups_.push_back(std::move(joined));
  change({.after = group().formation});
}

void CpuWorker::unify() {
  Group& joined = group();
  check(joined.formation.home_count() > 1 && steps_.empty(), "homes at rest become one");
  const std::lock_guard lock(order_);
  Formation after = joined.formation;
  joined.homes_apart = std::exchange(after.homes, {indices(0, joined.devices.size())});
  joined.apart = std::exchange(joined.homes, {this});
  joined.places_apart = std::exchange(after.home_places, places_as_one(joined.formation));
  joined.blocks_apart = std::exchange(after.home_blocks, {});
  joined.least_kv_blocks = after.form.kv.blocks;
  joined.meter = meter_of(joined.devices);
  change({.after = std::move(after),
          .kv = GroupChange::Kv::kUnifies,
          .homes = joined.formation.blocks()});
}

void CpuWorker::divide() {
  Group& joined = group();
  check(!joined.apart.empty() && steps_.empty(), "what was unified is divided, at rest");
  check(joined.formation.form.kv.blocks == joined.least_kv_blocks,
        "homes get as many blocks as they had");
  const std::lock_guard lock(order_);
  Formation after = joined.formation;
  after.homes = std::exchange(joined.homes_apart, {});
  after.home_places = std::exchange(joined.places_apart, nullptr);
  after.home_blocks = std::exchange(joined.blocks_apart, {});
  joined.homes = std::exchange(joined.apart, {});
  joined.least_kv_blocks = 0;
  joined.meter = nullptr;
  const HomeBlocks homes = after.blocks();
  change({.after = std::move(after), .kv = GroupChange::Kv::kDivides, .homes = homes});
}

void CpuWorker::part() {
  check(group().formation.home_count() > 1 && steps_.empty(), "the homes of a group part at rest");
  const std::lock_guard lock(order_);
  const Group joined = std::move(groups_.back());
  groups_.pop_back();
  const std::uint64_t number = number_;
  const Form& form = joined.formation.form;
  for (std::size_t home = 0; home < joined.homes.size(); ++home) {
    CpuWorker& worker = *joined.homes[home];
    const Copy& devices = joined.formation.homes[home];
    for (CpuWorker* const member : worker.group().members) {
      member->follow(worker, -devices.front());
    }
    Formation own = worker.group().formation;
    own.form.layer_precision = form.layer_precision;
    own.form.embeddings = form.embeddings;
    own.form.kv = form.kv;
    own.form.kv.blocks = joined.formation.blocks().of(static_cast<int>(home));
    for (std::size_t device = 0; device < devices.size(); ++device) {
      own.form.group[device] = form.group[static_cast<std::size_t>(devices[device])];
    }
    worker.number_ = number;
    worker.group().meter = meter_of(worker.group().devices);
    // Each meets all others once more, because they may still read what it showed them.
    worker.change({.meeting = joined.formation.devices, .after = std::move(own)});
  }
}

// Commits a HoldShards step, under the lock.
void CpuWorker::commit_hold(MorphId id, const HoldShards& step) {
  GroupChange::Hold hold{
      .id = id,
      .step = step,
      .precision = precision_of(group().formation.form, step.layer, step.component),
      .before = group().formation,
      .live = live_};
  hold.live.resize(group().homes.size());
  for (std::vector<BlockId>& blocks : hold.live) {
    std::sort(blocks.begin(), blocks.end());
  }
  Formation after = group().formation;
  after.form = protean::after(std::move(after.form), step);
  const bool moves_kv = step.component == Component::kAttention;
  if (moves_kv) {
    share_moves(hold, after);
  }
  change({.after = std::move(after), .hold = std::move(hold)});
  if (moves_kv) {
    passed_.layer[step.layer] = number_;
  }
}

// Gives each device its share of a layer's KV to move, and says from when on the KV stands still.
// Copies to other groups have ended before homes join or divide. One that was called off may still
// read, but what it reads is not used.
void CpuWorker::share_moves(GroupChange::Hold& hold, const Formation& after) {
  const int layer = hold.step.layer;
  hold.still = stands_still(layer);
  const cpu::GroupProgress& progress = fabric_->progress();
  const auto change = std::make_shared<const std::pair<Formation, Formation>>(hold.before, after);
  const std::vector<DeviceWorker*>& workers = group().devices;
  std::vector<std::byte*> arrays;
  for (const DeviceWorker* const worker : workers) {
    arrays.push_back(worker->rank().kv().array(layer));
  }
  for (int device = 0; device < static_cast<int>(workers.size()); ++device) {
    const auto index = static_cast<std::size_t>(device);
    const int shards =
        std::max(hold.before.form.group[index].of(layer, Component::kAttention).count,
                 hold.step.runs[index].count);
    const cpu::KvLayer& slots =
        workers[index]->rank().kv().layers()[static_cast<std::size_t>(layer)];
    hold.shares.push_back(std::make_unique<KvShare>(
        [change, layer, device] { return kv_move(change->first, change->second, layer, device); },
        KvMoveScene{.arrays = arrays,
                    .live = hold.live,
                    .slot_bytes = kv_heads_of_shard_ * shards * slots.slot_bytes(),
                    .device = device,
                    .has_failed = [&progress, own = after.devices[index]] {
                      return progress.failed(own);
                    }}));
  }
}

// Returns the moment from which on no entry that was given to the devices uses a layer's KV.
cpu::Moment CpuWorker::stands_still(int layer) const {
  const auto moved = passed_.layer.find(layer);
  const std::uint64_t whole =
      std::max(passed_.all, moved == passed_.layer.end() ? 0 : moved->second);
  return passed_.step > whole ? cpu::SharedExchange::attended(passed_.step, layer)
                              : cpu::Moment{whole, cpu::kStepEnd};
}

// Each device copies the heads of its shards from the devices that have them there.
void CpuWorker::copy_blocks(CpuWorker& source, const std::vector<BlockMove>& moves,
                            std::function<void()> done) {
  const Group& from = source.group();
  const Group& to = group();
  check(from.formation.home_count() == 1 && to.formation.home_count() == 1,
        "KV is copied between what serves as one");
  const bool one_fabric = fabric_ != nullptr && fabric_ == source.fabric_;
  const auto given_up = [](const DeviceWorker* device) { return device->given_up(); };
  if (std::any_of(from.devices.begin(), from.devices.end(), given_up)) {
    return;  // called off
  }
  std::vector<std::shared_ptr<const KvLayout>> layouts;
  for (const DeviceWorker* const device : from.devices) {
    check(!device->layout_changes(), "the KV that is copied has its place");
    layouts.push_back(std::make_shared<const KvLayout>(device->rank().kv().layout()));
  }
  KvCopy copy{.sources = {}, .moves = moves, .groups = {}, .done = {}};
  if (one_fabric) {  // else failed groups serve no more
    copy.groups = to.formation.devices;
    copy.groups.insert(copy.groups.end(), from.formation.devices.begin(),
                       from.formation.devices.end());
  }
  const auto left = std::make_shared<std::atomic<std::size_t>>(to.devices.size());
  copy.done = [left, done = std::move(done)] {
    if (left->fetch_sub(1) == 1) {
      done();
    }
  };
  const std::lock_guard lock(order_);
  passed_.all = number_ + 1;
  for (std::size_t device = 0; device < to.devices.size(); ++device) {
    copy.sources.clear();
    for (std::size_t other = 0; other < from.devices.size(); ++other) {
      std::vector<SharedHeads> heads =
          shared_heads({from.formation.form.group[other], source.kv_heads_of_shard_},
                       {to.formation.form.group[device], kv_heads_of_shard_});
      if (!heads.empty()) {
        copy.sources.push_back({from.devices[other], layouts[other], std::move(heads)});
      }
    }
    to.devices[device]->push(copy);
  }
}

// Gives all devices of the group a change, under the lock.
void CpuWorker::change(GroupChange change) {
  const std::vector<DeviceWorker*>& devices = group().devices;
  change.number = ++number_;
  passed_.all = change.hold ? passed_.all : number_;
  if (change.meeting.empty()) {
    change.meeting = change.after.devices;
  }
  for (int device = 0; device < static_cast<int>(devices.size()); ++device) {
    change.routes.push_back(route_of(change.after, device));
  }
  group().formation = change.after;
  const auto shared = std::make_shared<const GroupChange>(std::move(change));
  for (int device = 0; device < static_cast<int>(devices.size()); ++device) {
    devices[static_cast<std::size_t>(device)]->push(DeviceChange{shared, device});
  }
  if (moves_kv_early_ && shared->hold && !shared->hold->shares.empty()) {
    move_early(shared);
  }
}

// Lets each device begin its share of a change in the background, at the moment when no earlier
// entry uses the layer's KV any more. No device comes to the end of the change before that.
void CpuWorker::move_early(const std::shared_ptr<const GroupChange>& change) {
  const GroupChange::Hold& hold = *change->hold;
  if (hold.still.step >= change->number) {
    return;  // blocks are copied right before the change, which has no moment of its own
  }
  fabric_->progress().when_come(
      change->after.devices, hold.still, [change, workers = group().devices] {
        for (std::size_t device = 0; device < workers.size(); ++device) {
          workers[device]->move_early({change, change->hold->shares[device].get()});
        }
      });
}

}  // namespace protean
