#pragma once

#include "base/units.h"

namespace protean {

// Holt's level and trend of a value sampled at any times, in constant memory: what it will be
// shortly, if it goes on as it did in the last few time constants.
class Trend {
 public:
  explicit Trend(TimeNs time_constant_ns) : time_constant_ns_(time_constant_ns) {}

  void add(TimeNs now_ns, double value);

  double level() const { return level_; }
  double after(TimeNs ahead_ns) const;

 private:
  TimeNs time_constant_ns_;
  TimeNs at_ns_ = -1;
  double level_ = 0;
  double per_ns_ = 0;
};

}  // namespace protean
