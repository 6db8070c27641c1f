#include "device/cpu/progress.h"

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

void GroupProgress::reach(int device, Moment moment) {
  Reached& reached = reached_[static_cast<std::size_t>(device)];
  const std::uint64_t now = encoded(moment);
  check(reached.value.load(std::memory_order_relaxed) <= now, "progress only grows");
  reached.value.store(now, std::memory_order_release);
  reached.changes.fetch_add(1, std::memory_order_release);
  reached.changes.notify_all();
}

void GroupProgress::wait(int device, Moment moment) const {
  const Reached& reached = reached_[static_cast<std::size_t>(device)];
  const std::atomic<std::uint64_t>& value = reached.value;
  const std::uint64_t wanted = encoded(moment);
  for (int i = 0; spins_ && i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) >= wanted) {
      return;
    }
    pause();
  }
  for (;;) {
    const std::uint32_t changes = reached.changes.load(std::memory_order_acquire);
    if (value.load(std::memory_order_acquire) >= wanted) {
      return;
    }
    reached.changes.wait(changes, std::memory_order_acquire);
  }
}

}  // namespace protean::cpu
