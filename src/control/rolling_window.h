#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace protean {

// Mean and maximum, weighted by time, of a value over the last `length`, in constant memory and
// time: the window is cut into slices, of which only the oldest counts in part. The value is 0
// before the first set(). Times must not go back.
class RollingWindow {
 public:
  explicit RollingWindow(TimeNs length_ns);

  void set(TimeNs now_ns, double value);  // so it is from now until the next set()

  double mean(TimeNs now_ns) const;
  double max(TimeNs now_ns) const;  // up to a slice older than the window is

 private:
  static constexpr std::int64_t kSlices = 16;
  struct Slice {
    std::int64_t number = -1;  // since time 0
    double integral = 0;       // of the value over ns
    double max = 0;
  };

  Slice& slice(std::int64_t number);

  TimeNs slice_ns_;
  std::array<Slice, kSlices + 1> slices_;
  TimeNs at_ns_ = 0;
  double value_ = 0;
};

// How much was added in the last `length`.
class RollingCount {
 public:
  explicit RollingCount(TimeNs length_ns);

  void add(TimeNs now_ns, std::int64_t count);

  double total(TimeNs now_ns) const;
  double per_s(TimeNs now_ns) const { return total(now_ns) / window_s(); }
  TimeNs window_ns() const { return kSlices * slice_ns_; }
  double window_s() const { return static_cast<double>(window_ns()) / kNsPerS; }

 private:
  static constexpr std::int64_t kSlices = 16;
  struct Slice {
    std::int64_t number = -1;
    std::int64_t count = 0;
  };

  TimeNs slice_ns_;
  std::array<Slice, kSlices + 1> slices_;
};

// Quantiles of what was added in the last `length`, to 10 %: counts in slices of time and bins that
// grow by a factor.
class RollingQuantile {
 public:
  explicit RollingQuantile(TimeNs length_ns);

  void add(TimeNs now_ns, TimeNs value_ns);

  TimeNs quantile(TimeNs now_ns, double q) const;  // 0 where nothing was added

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
