#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace protean {

// Returns quantiles of what was added in the last `length`, to 10 %: counts in slices of time and
// bins that grow by a factor.
class RollingQuantile {
 public:
  explicit RollingQuantile(TimeNs length_ns);

  void add(TimeNs now_ns, TimeNs value_ns);

  TimeNs quantile(TimeNs now_ns, double q) const;  // 0 if nothing was added

 private:
  static constexpr std::int64_t kSlices = 8;
  static constexpr int kBins = 128;  // from 10 us; the last has no upper end
  struct Slice {
    std::int64_t number = -1;
    std::array<std::uint32_t, kBins> counts{};
  };

  TimeNs slice_ns_;
  std::array<Slice, kSlices> slices_;
};

}  // namespace protean
