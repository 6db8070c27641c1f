#pragma once

#include <prometheus/counter.h>

#include <cstdint>

namespace protean {

// Shows a total that the engine keeps as a counter, which never decreases. A total below the last
// one is a new engine's, which counts from 0: the model was asleep.
class MirroredCounter {
 public:
  explicit MirroredCounter(prometheus::Counter& counter) : counter_(counter) {}
  // Returns by how much the counter has grown.
  std::int64_t set(std::int64_t total) {
    const std::int64_t grown = total < last_ ? total : total - last_;
    counter_.Increment(static_cast<double>(grown));
    last_ = total;
    return grown;
  }

 private:
  prometheus::Counter& counter_;
  std::int64_t last_ = 0;
};

}  // namespace protean
