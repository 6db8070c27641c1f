#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "base/replica_id.h"
#include "contract/step.h"
#include "fleet/exchange_pace.h"
#include "ports/device_groups.h"
#include "ports/executor.h"

namespace protean {

// Runs the steps of several homes jointly: collects the plans that their engines start, and gives
// one of each home at a time to the devices, so that homes whose copy is divided compute together.
// Engines know nothing of each other.
class JointSteps {
 public:
  // The devices must outlive it. At most `at_once` joint steps are in flight.
  JointSteps(DeviceGroups& devices, ReplicaId group, std::size_t homes, int at_once)
      : devices_(devices), group_(group), waiting_(homes), at_once_(at_once) {}

  void add(std::size_t home, StepPlan plan) { waiting_[home].push_back(std::move(plan)); }
  // Starts what may start. Must be called once all engines have planned what they can.
  void dispatch(TimeNs now_ns);
  // A StepDone of a home has come.
  void done(std::size_t home, TimeNs now_ns);
  bool quiet() const;

  // The devices change what they hold before the next joint step, and move the KV of so many
  // layers; they have done so. Returns how many may move next, at most `most`.
  void changing(int layers, TimeNs now_ns) { pace_.committed(layers, !in_flight_.empty(), now_ns); }
  void changed(TimeNs now_ns) { pace_.morph_done(now_ns); }
  int layers_at_once(int most) const { return pace_.layers(most, !quiet()); }

 private:
  DeviceGroups& devices_;
  const ReplicaId group_;
  std::vector<std::deque<StepPlan>> waiting_;  // by home
  std::deque<std::vector<bool>> in_flight_;    // by home: its plan is not done
  const int at_once_;
  ExchangePace pace_;
};

// The executor of one replica's engine: the replica's own, or while it is a home of a group that
// has not united, the joint steps of the group.
class HomeExecutor final : public Executor {
 public:
  explicit HomeExecutor(Executor& own) : own_(own) {}

  void join(JointSteps& joint, std::size_t home) {
    joint_ = &joint;
    home_ = home;
  }
  void part() { joint_ = nullptr; }
  Executor& own() { return own_; }

  void start(StepPlan plan) override {
    if (joint_ != nullptr) {
      joint_->add(home_, std::move(plan));
    } else {
      own_.start(std::move(plan));
    }
  }
  void prepare(MorphId id, const MorphStep& step) override { own_.prepare(id, step); }
  void commit(MorphId id) override { own_.commit(id); }
  void abort(MorphId id) override { own_.abort(id); }
  void move_blocks(std::vector<BlockMove> moves) override { own_.move_blocks(std::move(moves)); }
  bool set_quota(std::int64_t pages) override { return joint_ == nullptr && own_.set_quota(pages); }
  DeviceUse use() const override { return own_.use(); }
  bool awaits_turn() const override { return own_.awaits_turn(); }

 private:
  Executor& own_;
  JointSteps* joint_ = nullptr;  // null: the replica runs alone
  std::size_t home_ = 0;
};

}  // namespace protean
