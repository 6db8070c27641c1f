#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace protean::cpu {

// A point in the work of a group: `point` counts what a device does within a step. Moments are
// ordered by step, then by point.
struct Moment {
  std::uint64_t step = 0;
  std::uint32_t point = 0;
};

// The last point of every step.
inline constexpr std::uint32_t kStepEnd = (1U << 20) - 1;

// How far each device of a group has come. A device publishes its progress, which only grows, and
// waits for that of others. What it wrote before is visible to those that waited.
//
// No device waits for a failed one, whose progress may then be anything. A device that hung and
// wakes up stops at its next publication or wait, so that it does not spoil what the others do
// without it. A device whose memory is lost fails by itself before it publishes again, so the
// others never use what it wrote since.
class GroupProgress {
 public:
  // `spins`: every thread of the group has a CPU of its own, so that waits may begin with a short
  // spin. Otherwise a spinning thread would take the CPU from the one that it waits for.
  GroupProgress(int devices, bool spins);

  int devices() const { return static_cast<int>(reached_.size()); }

  // Sets what tells whether a device's memory is sound; called by its thread before it tells any
  // progress. Must be set before the device's first step.
  void guard(int device, std::function<bool()> sound);

  // Tells that `device` has come to `moment`. Called by that device's thread only.
  void reach(int device, Moment moment);
  // The same for when_come() alone, and costs next to nothing: it wakes no device, so none may wait
  // for a moment between the one reached before and this one, and it leaves it to the next reach()
  // to find that the device has failed.
  void pass(int device, Moment moment);
  // Returns when `device` has come to `moment`, or beyond it, or has failed. Called by the thread
  // of the device `waiter` only.
  void wait(int waiter, int device, Moment moment);

  // The following may be called by any thread.
  // Calls `then` once all these devices have come to `moment`, or beyond it: on the thread of the
  // last one, before that goes on, or on this thread if they have come already. Does not call it
  // if one of them has failed by then.
  void when_come(std::vector<int> devices, Moment moment, std::function<void()> then);
  void fail(int device);
  bool failed(int device) const { return state_of(device) != State::kWell; }
  // Lets a device that has failed go on, so that its thread can end.
  void let_go(int device);
  // Returns for how long the device has waited so far.
  std::int64_t waited_ns(int device) const {
    return reached_[static_cast<std::size_t>(device)].waited_ns.load(std::memory_order_relaxed);
  }
  // Returns true while the device waits for a moment to which another one has not come. False once
  // that one has come there, even if the device does not go on because it hangs.
  bool waits(int device) const;

 private:
  enum class State : std::uint8_t { kWell, kFailed, kLetGo };
  // Waiters sleep on `changes`, which the system can wait for directly as it has 32 bits.
  struct alignas(64) Reached {
    std::atomic<std::uint64_t> value{0};
    std::atomic<std::uint32_t> changes{0};
    std::atomic<State> state{State::kWell};
    std::atomic<int> waits_for{-1};  // a device; -1: it does not wait
    std::atomic<std::uint64_t> until{0};
    std::atomic<std::int64_t> waited_ns{0};
    std::function<bool()> sound;
  };
  struct Watch {
    std::vector<int> devices;
    std::uint64_t moment = 0;
    std::function<void()> then;
  };
  bool passed(int device, std::uint64_t moment) const {
    const Reached& reached = reached_[static_cast<std::size_t>(device)];
    return reached.value.load(std::memory_order_acquire) >= moment || failed(device);
  }
  State state_of(int device) const {
    return reached_[static_cast<std::size_t>(device)].state.load();
  }
  void stop_if_failed(int device);
  void sleep_until(int waiter, int device, std::uint64_t moment);
  void tell_watches();

  const bool spins_;
  std::vector<Reached> reached_;
  std::mutex watches_mutex_;
  std::vector<Watch> watches_;  // what when_come() was given, and has neither called nor dropped
  std::atomic<std::size_t> watch_count_ = 0;
};

}  // namespace protean::cpu
