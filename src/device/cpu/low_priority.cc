#include "device/cpu/low_priority.h"

#include <sys/resource.h>

#include <exception>
#include <thread>

namespace protean::cpu {
namespace {

constexpr int kLowerBy = 10;  // of nice: a tenth of the weight

}  // namespace

// Linux gives each thread a nice value of its own. If that or the thread is refused, the work is
// only less polite.
void run_at_low_priority(const std::function<void()>& work) {
  std::exception_ptr thrown;
  const auto politely = [&] {
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kLowerBy);
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  std::thread thread;
  try {
    thread = std::thread(politely);
  } catch (const std::exception&) {  // there are too many threads, or no memory for one more
    work();
    return;
  }
  thread.join();
  if (thrown) {
    std::rethrow_exception(thrown);
  }
}

}  // namespace protean::cpu
