#include "device/cpu/low_priority.h"

#include <sys/resource.h>

#include <thread>

namespace protean::cpu {
namespace {

constexpr int kLowerBy = 10;  // of nice: a tenth of the weight

}  // namespace

// Linux gives each thread a nice value of its own. If it is refused, the work is only less polite.
void run_at_low_priority(const std::function<void()>& work) {
  std::thread thread([&] {
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kLowerBy);
    work();
  });
  thread.join();
}

}  // namespace protean::cpu
