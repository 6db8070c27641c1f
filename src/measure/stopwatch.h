#pragma once

#include <functional>

namespace protean {

// Seconds that work takes: by the wall, or the processor time of this process divided by the
// threads that do it, for machines that have other work.
class Stopwatch {
 public:
  Stopwatch(bool cpu_time, int threads) : cpu_time_(cpu_time), threads_(threads) {}

  double now_s() const;
  double time_s(const std::function<void()>& work) const;

 private:
  bool cpu_time_;
  int threads_;
};

// Of so many runs, after one that nobody times, in which pages, caches and clock speed settle.
double median_s(const Stopwatch& stopwatch, int repeat, const std::function<void()>& work);

}  // namespace protean
