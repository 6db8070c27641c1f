#pragma once

#include <prometheus/counter.h>

#include <cstdint>

namespace protean {

// Shows a total that the engine keeps as a counter, which never decreases. A total below the last
// one is a new engine's, which counts from 0: the model was asleep.
class MirroredCounter {
 public:
  explicit MirroredCounter(prometheus::Counter& counter) : counter_(counter) {}
  void set(std::int64_t total) {
    counter_.Increment(static_cast<double>(total < last_ ? total : total - last_));
    last_ = total;
  }
  std::int64_t last() const { return last_; }

 private:
  prometheus::Counter& counter_;
  std::int64_t last_ = 0;
};

}  // namespace protean
