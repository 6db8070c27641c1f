#include "control/trend.h"

#include <algorithm>
#include <cmath>

namespace protean {

void Trend::add(TimeNs now_ns, double value) {
  if (at_ns_ < 0) {
    at_ns_ = now_ns;
    level_ = value;
    return;
  }
  const auto passed_ns = static_cast<double>(now_ns - at_ns_);
  if (passed_ns <= 0) {
    return;
  }
  const auto constant_ns = static_cast<double>(time_constant_ns_);
  const double expected = level_ + per_ns_ * passed_ns;
  const double level = expected + (1 - std::exp(-passed_ns / constant_ns)) * (value - expected);
  per_ns_ +=
      (1 - std::exp(-passed_ns / (2 * constant_ns))) * ((level - level_) / passed_ns - per_ns_);
  level_ = level;
  at_ns_ = now_ns;
}

double Trend::after(TimeNs ahead_ns) const {
  return std::max(0.0, level_ + per_ns_ * static_cast<double>(ahead_ns));
}

}  // namespace protean
