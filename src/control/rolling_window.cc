#include "control/rolling_window.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace protean {
namespace {

constexpr double kFirstBinNs = 10.0 * kNsPerUs;  // shorter than any time that is watched
constexpr double kBinGrowth = 1.15;              // a quantile is off by half of it, 7 %, at most

TimeNs slice_length(TimeNs length_ns, std::int64_t slices) {
  check(length_ns >= slices, "a window is longer than its slices");
  return length_ns / slices;
}

int bin_of(TimeNs value_ns, int bins) {
  const double above = static_cast<double>(std::max<TimeNs>(value_ns, 1)) / kFirstBinNs;
  return std::clamp(static_cast<int>(std::ceil(std::log(above) / std::log(kBinGrowth))), 0,
                    bins - 1);
}

}  // namespace

RollingQuantile::RollingQuantile(TimeNs length_ns) : slice_ns_(slice_length(length_ns, kSlices)) {}

void RollingQuantile::add(TimeNs now_ns, TimeNs value_ns) {
  const std::int64_t number = now_ns / slice_ns_;
  Slice& slice = slices_[static_cast<std::size_t>(number % std::ssize(slices_))];
  if (slice.number != number) {
    slice = {.number = number};
  }
  ++slice.counts[static_cast<std::size_t>(bin_of(value_ns, kBins))];
}

TimeNs RollingQuantile::quantile(TimeNs now_ns, double q) const {
  std::array<std::int64_t, kBins> counts{};
  std::int64_t total = 0;
  for (const Slice& slice : slices_) {
    if (slice.number >= 0 && slice.number > now_ns / slice_ns_ - kSlices) {
      for (std::size_t bin = 0; bin < kBins; ++bin) {
        counts[bin] += slice.counts[bin];
        total += slice.counts[bin];
      }
    }
  }
  if (total == 0) {
    return 0;
  }
  const auto rank = static_cast<std::int64_t>(std::ceil(q * static_cast<double>(total)));
  std::int64_t below = 0;
  std::size_t bin = 0;
  while (bin + 1 < kBins && (below += counts[bin]) < std::max<std::int64_t>(rank, 1)) {
    ++bin;
  }
  // The geometric middle of the bin.
  return std::llround(kFirstBinNs * std::pow(kBinGrowth, static_cast<double>(bin) - 0.5));
}

}  // namespace protean
