#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/units.h"
#include "control/fair_turns.h"
#include "ports/step_turn.h"

namespace protean {

// The turns of all devices of a server. Any thread may call; ModelTurns and its devices do.
class SharedTurns {
 public:
  explicit SharedTurns(Clock clock) : clock_(std::move(clock)) {}

 private:
  friend class ModelTurns;
  friend class DeviceTurn;

  const Clock clock_;  // a steady one
  std::mutex mutex_;
  std::condition_variable changed_;  // a wait may be shorter
  FairTurns turns_;
};

// The turns of the devices on which one model is served, however often it is unloaded and loaded
// again, and also those of a configuration that hands its requests over to another one.
class ModelTurns final : public TimeShare, public std::enable_shared_from_this<ModelTurns> {
 public:
  ModelTurns(std::shared_ptr<SharedTurns> all, int priority)
      : all_(std::move(all)), priority_(priority) {}

  // Adds a device on these CPUs, which leaves when what is returned is destroyed. An empty list
  // means all CPUs.
  std::unique_ptr<StepTurn> add(const std::vector<int>& cpus);

  int priority() const override;
  void set_priority(int priority) override;
  double step_seconds() const override;

 private:
  friend class DeviceTurn;
  void remove(TurnId id);

  const std::shared_ptr<SharedTurns> all_;
  // Guarded by the mutex of `all_`.
  int priority_;
  std::set<TurnId> devices_;
  TimeNs removed_ns_ = 0;  // steps of devices that have left
};

}  // namespace protean
