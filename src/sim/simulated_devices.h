#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "base/units.h"
#include "contract/device_use.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/group_cost.h"
#include "cost/step_time.h"
#include "ports/device_groups.h"
#include "ports/executor.h"
#include "ports/kv_exchange.h"
#include "sim/device_timeline.h"
#include "sim/event_heap.h"
#include "sim/morph_model.h"
#include "sim/shared_links.h"

namespace protean {

// How steps of a model, changes of form and copies of KV take time on simulated devices.
struct DeviceTimes {
  GroupCost cost;
  MorphCost morph;
  double block_copy_us = 100;    // to copy one KV block of all layers to another replica
  StepPrecision step_precision;  // if the form never changes
};

// The clock, the event heap and the drawn tokens, which the simulation gives its executors.
struct SimulatedWorld {
  const TimeNs& now_ns;
  EventHeap& heap;
  // Returns the token that a request draws at a position.
  std::function<TokenId(RequestId, int)> draw;
};

// The devices of all replicas in virtual time: an executor for each replica, and groups of them.
// A step takes the time that the cost model predicts on each device that computes a part of it, and
// devices wait for what others compute. Copies take the bandwidth of links, in the background or,
// for KV that moves with a layer's attention, between two steps. Pages are counted on each device.
class SimulatedDevices final : public DeviceGroups, public KvExchange {
 public:
  // `replicas` has the devices of each; nothing: a replica is one device whose form never changes,
  // and no groups form. The world must outlive the devices.
  SimulatedDevices(const std::vector<std::optional<MorphModel::Devices>>& replicas,
                   DeviceTimes times, std::uint64_t seed, SimulatedWorld world);
  ~SimulatedDevices() override;

  Executor& executor(std::size_t replica);

  void join(const std::vector<ReplicaId>& replicas) override;
  void unify(ReplicaId replica) override;
  void divide(ReplicaId replica) override;
  void part(ReplicaId replica) override;
  void start(ReplicaId group, std::vector<StepPlan> plans) override;
  void keep(ReplicaId group, std::vector<std::vector<BlockId>> live) override;
  void copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) override;

  // Returns when the next background copy ends, as far as is known now; kNever without one.
  TimeNs copied_ns() const;
  // Background copies go on until then.
  void copy_until(TimeNs until_ns);
  // Ends the copy that copied_ns() speaks of.
  Event take_copied();

  // Returns the use of all pipelines so far.
  DeviceUse pipelines() const;
  std::int64_t kv_bytes_exchanged() const { return kv_bytes_exchanged_; }

 private:
  class ReplicaExecutor;
  struct Group;

  Group& top(ReplicaId replica) const;
  std::optional<TimeNs> copied_ns(const Group& group) const;
  BackgroundLinks links_of(const Group& group) const;
  std::size_t next_copier() const;
  void refresh(Group& group) const;
  StepWork work_of_plan(const Group& group, const StepPlan& plan) const;
  StepResult result_of(const StepPlan& plan) const;
  std::int64_t take_swapped(StepPlan& plan);
  TimeNs swap_in(const Group& group, std::vector<StepPlan>& plans);
  void run(ReplicaId first, std::vector<StepPlan> plans);
  void commit(ReplicaId replica, MorphId id);
  TimeNs exchange_ns(Group& group, const MorphStep& step);

  const DeviceTimes times_;
  const std::uint64_t seed_;
  const SimulatedWorld world_;
  SharedLinks links_;
  // By first replica: the replica alone, then the groups that it leads, the innermost first.
  std::vector<std::vector<std::unique_ptr<Group>>> groups_;
  std::vector<std::unique_ptr<ReplicaExecutor>> executors_;
  std::unordered_map<RequestId, int> computed_;  // tokens whose KV was computed, if KV is swapped
  DeviceUse ended_pipelines_;
  std::int64_t kv_bytes_exchanged_ = 0;
};

}  // namespace protean
