#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/units.h"

namespace protean {

// The most of something in the last one to two windows, so that what is given up for a moment does
// not count as given up. Times never decrease.
class RecentMost {
 public:
  explicit RecentMost(TimeNs window_ns) : window_ns_(window_ns) {}

  void see(std::int64_t now, TimeNs now_ns) {
    if (now_ns >= begun_ns_ + window_ns_) {
      before_ = std::exchange(most_, 0);
      begun_ns_ = now_ns;
    }
    most_ = std::max(most_, now);
  }
  std::int64_t most() const { return std::max(most_, before_); }

 private:
  const TimeNs window_ns_;
  TimeNs begun_ns_ = 0;
  std::int64_t most_ = 0;    // since begun_ns_
  std::int64_t before_ = 0;  // in the window before
};

}  // namespace protean
