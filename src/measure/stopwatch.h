#pragma once

#include <functional>

namespace protean {

// Measures seconds: wall time, or for machines with other load this process's processor time
// divided by its threads.
class Stopwatch {
 public:
  Stopwatch(bool cpu_time, int threads) : cpu_time_(cpu_time), threads_(threads) {}

  double now_s() const;
  double time_s(const std::function<void()>& work) const;

 private:
  bool cpu_time_;
  int threads_;
};

// Returns the median of `repeat` runs, after one that is not timed and warms up caches and clock.
double median_s(const Stopwatch& stopwatch, int repeat, const std::function<void()>& work);

}  // namespace protean
