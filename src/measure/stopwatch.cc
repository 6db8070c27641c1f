#include "measure/stopwatch.h"

#include <time.h>

#include <algorithm>
#include <vector>

namespace protean {

double Stopwatch::now_s() const {
  timespec now = {};
  ::clock_gettime(cpu_time_ ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return cpu_time_ ? seconds / threads_ : seconds;
}

double Stopwatch::time_s(const std::function<void()>& work) const {
  const double start_s = now_s();
  work();
  return now_s() - start_s;
}

double median_s(const Stopwatch& stopwatch, int repeat, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) {
    times.push_back(stopwatch.time_s(work));
  }
  const auto middle = times.begin() + repeat / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace protean
