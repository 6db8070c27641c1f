#include "device/cpu/progress.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace protean::cpu {
namespace {

constexpr int kPointBits = 20;
constexpr int kSpins = 1024;  // some tens of microseconds, about what a sleep and a wake-up take

std::uint64_t encoded(Moment moment) {
  check(moment.point < (1U << kPointBits), "a step has not so many points");
  return moment.step << kPointBits | moment.point;
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

GroupProgress::GroupProgress(int devices, bool spins)
    : spins_(spins), reached_(static_cast<std::size_t>(devices)) {}

void GroupProgress::guard(int device, std::function<bool()> sound) {
  reached_[static_cast<std::size_t>(device)].sound = std::move(sound);
}

void GroupProgress::reach(int device, Moment moment) {
  Reached& reached = reached_[static_cast<std::size_t>(device)];
  if (reached.sound && !reached.sound()) {
    fail(device);
  }
  stop_if_failed(device);
  pass(device, moment);
  reached.changes.fetch_add(1, std::memory_order_release);
  reached.changes.notify_all();
}

void GroupProgress::pass(int device, Moment moment) {
  std::atomic<std::uint64_t>& value = reached_[static_cast<std::size_t>(device)].value;
  const std::uint64_t now = encoded(moment);
  check(value.load(std::memory_order_relaxed) <= now, "progress only grows");
  // The order of all such operations is one, so that either this thread sees a watch that is being
  // added, or the thread that adds it sees this moment.
  value.store(now, std::memory_order_seq_cst);
  if (watch_count_.load(std::memory_order_seq_cst) != 0) {
    tell_watches();
  }
}

void GroupProgress::when_come(std::vector<int> devices, Moment moment, std::function<void()> then) {
  {
    const std::lock_guard lock(watches_mutex_);
    watches_.push_back({std::move(devices), encoded(moment), std::move(then)});
    watch_count_.store(watches_.size(), std::memory_order_seq_cst);
  }
  tell_watches();
}

// Calls what is due, and drops what is not to be called any more.
void GroupProgress::tell_watches() {
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard lock(watches_mutex_);
    std::erase_if(watches_, [&](const Watch& watch) {
      const auto fails = [this](int device) { return failed(device); };
      if (std::any_of(watch.devices.begin(), watch.devices.end(), fails)) {
        return true;
      }
      const bool come = std::all_of(watch.devices.begin(), watch.devices.end(), [&](int device) {
        return reached_[static_cast<std::size_t>(device)].value.load() >= watch.moment;
      });
      if (come) {
        due.push_back(watch.then);
      }
      return come;
    });
    watch_count_.store(watches_.size(), std::memory_order_seq_cst);
  }
  for (const std::function<void()>& then : due) {
    then();
  }
}

void GroupProgress::wait(int waiter, int device, Moment moment) {
  stop_if_failed(waiter);
  const std::uint64_t wanted = encoded(moment);
  if (passed(device, wanted)) {
    return;
  }
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; spins_ && i < kSpins && !passed(device, wanted); ++i) {
    pause();
  }
  if (!passed(device, wanted)) {
    sleep_until(waiter, device, wanted);
  }
  reached_[static_cast<std::size_t>(waiter)].waited_ns.fetch_add(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begun).count(),
      std::memory_order_relaxed);
  stop_if_failed(waiter);
}

void GroupProgress::sleep_until(int waiter, int device, std::uint64_t moment) {
  const Reached& reached = reached_[static_cast<std::size_t>(device)];
  Reached& own = reached_[static_cast<std::size_t>(waiter)];
  own.until.store(moment, std::memory_order_relaxed);
  own.waits_for.store(device, std::memory_order_release);
  for (;;) {
    const std::uint32_t changes = reached.changes.load(std::memory_order_acquire);
    if (passed(device, moment)) {
      break;
    }
    reached.changes.wait(changes, std::memory_order_acquire);
  }
  own.waits_for.store(-1, std::memory_order_release);
}

bool GroupProgress::waits(int device) const {
  const Reached& own = reached_[static_cast<std::size_t>(device)];
  const int other = own.waits_for.load(std::memory_order_acquire);
  return other >= 0 && !passed(other, own.until.load(std::memory_order_relaxed));
}

void GroupProgress::fail(int device) {
  Reached& reached = reached_[static_cast<std::size_t>(device)];
  State well = State::kWell;  // a device that was let go stays so
  reached.state.compare_exchange_strong(well, State::kFailed);
  reached.changes.fetch_add(1, std::memory_order_release);
  reached.changes.notify_all();
  tell_watches();
}

void GroupProgress::let_go(int device) {
  std::atomic<State>& state = reached_[static_cast<std::size_t>(device)].state;
  state.store(State::kLetGo, std::memory_order_release);
  state.notify_all();
}

void GroupProgress::stop_if_failed(int device) {
  reached_[static_cast<std::size_t>(device)].state.wait(State::kFailed, std::memory_order_acquire);
}

}  // namespace protean::cpu
