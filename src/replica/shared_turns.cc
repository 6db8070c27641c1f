#include "replica/shared_turns.h"

#include <atomic>
#include <chrono>
#include <utility>

namespace protean {

// One device of a model.
class DeviceTurn final : public StepTurn {
 public:
  DeviceTurn(std::shared_ptr<ModelTurns> model, TurnId id)
      : model_(std::move(model)), all_(*model_->all_), id_(id) {}
  ~DeviceTurn() override { model_->remove(id_); }
  DeviceTurn(const DeviceTurn&) = delete;
  DeviceTurn& operator=(const DeviceTurn&) = delete;

  void want() override {
    if (wants_.exchange(true)) {
      return;
    }
    const std::lock_guard lock(all_.mutex_);
    if (!let_go_) {
      all_.turns_.want(id_);
    }
  }

  void rest() override {
    if (!wants_.exchange(false)) {
      return;
    }
    {
      const std::lock_guard lock(all_.mutex_);
      all_.turns_.rest(id_);
    }
    all_.changed_.notify_all();
  }

  void begin() override {
    std::unique_lock lock(all_.mutex_);
    while (!let_go_) {
      const TimeNs now_ns = all_.clock_();
      const TimeNs opens_ns = all_.turns_.opens_ns(id_, now_ns);
      if (opens_ns <= now_ns) {
        break;
      }
      waits_ = true;
      all_.changed_.wait_for(lock, std::chrono::nanoseconds(opens_ns - now_ns));
    }
    waits_ = false;
    all_.turns_.begin(id_, all_.clock_());
  }

  void end(TimeNs waited_ns) override {
    const std::lock_guard lock(all_.mutex_);
    all_.turns_.end(id_, all_.clock_(), waited_ns);
  }

  bool waits() const override { return waits_; }

  void let_go() override {
    {
      const std::lock_guard lock(all_.mutex_);
      let_go_ = true;
      all_.turns_.rest(id_);
    }
    all_.changed_.notify_all();
  }

 private:
  const std::shared_ptr<ModelTurns> model_;
  SharedTurns& all_;  // kept by the model
  const TurnId id_;
  bool let_go_ = false;  // guarded by the mutex
  std::atomic<bool> waits_ = false;
  std::atomic<bool> wants_ = false;  // as it was told
};

std::unique_ptr<StepTurn> ModelTurns::add(const std::vector<int>& cpus) {
  const std::lock_guard lock(all_->mutex_);
  const TurnId id = all_->turns_.add(cpus, priority_);
  devices_.insert(id);
  return std::make_unique<DeviceTurn>(shared_from_this(), id);
}

void ModelTurns::remove(TurnId id) {
  {
    const std::lock_guard lock(all_->mutex_);
    removed_ns_ += all_->turns_.computed_ns(id);
    all_->turns_.remove(id);
    devices_.erase(id);
  }
  all_->changed_.notify_all();
}

int ModelTurns::priority() const {
  const std::lock_guard lock(all_->mutex_);
  return priority_;
}

void ModelTurns::set_priority(int priority) {
  {
    const std::lock_guard lock(all_->mutex_);
    priority_ = priority;
    for (const TurnId id : devices_) {
      all_->turns_.set_priority(id, priority);
    }
  }
  all_->changed_.notify_all();
}

double ModelTurns::step_seconds() const {
  const std::lock_guard lock(all_->mutex_);
  TimeNs sum_ns = removed_ns_;
  for (const TurnId id : devices_) {
    sum_ns += all_->turns_.computed_ns(id);
  }
  return static_cast<double>(sum_ns) / static_cast<double>(kNsPerS);
}

}  // namespace protean
