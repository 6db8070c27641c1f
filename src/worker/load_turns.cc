#include "worker/load_turns.h"

#include <ctime>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::int64_t kTurnNs = 5 * kNsPerMs;

std::int64_t thread_time_ns() {
  timespec time{};
  check(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0, "a thread has a clock");
  return std::int64_t{time.tv_sec} * kNsPerS + time.tv_nsec;
}

}  // namespace

cpu::MayGoOn in_turns(const std::function<void()>& await_turn) {
  return [&await_turn, began_ns = std::int64_t{0}]() mutable {
    if (thread_time_ns() - began_ns >= kTurnNs) {
      await_turn();
      began_ns = thread_time_ns();
    }
    return true;
  };
}

}  // namespace protean
