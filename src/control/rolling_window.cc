#include "control/rolling_window.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace protean {
namespace {

constexpr double kFirstBinNs = 10.0 * kNsPerUs;
constexpr double kBinGrowth = 1.15;

TimeNs slice_length(TimeNs length_ns, std::int64_t slices) {
  check(length_ns >= slices, "a window is longer than its slices");
  return length_ns / slices;
}

int bin_of(TimeNs value_ns, int bins) {
  const double above = static_cast<double>(std::max<TimeNs>(value_ns, 1)) / kFirstBinNs;
  return std::clamp(static_cast<int>(std::ceil(std::log(above) / std::log(kBinGrowth))), 0,
                    bins - 1);
}

// The oldest of the slices lies partly before the window; what it holds counts in proportion.
double part_of_oldest(TimeNs now_ns, TimeNs slice_ns) {
  return 1.0 - static_cast<double>(now_ns % slice_ns) / static_cast<double>(slice_ns);
}

}  // namespace

RollingWindow::RollingWindow(TimeNs length_ns) : slice_ns_(slice_length(length_ns, kSlices)) {}

RollingWindow::Slice& RollingWindow::slice(std::int64_t number) {
  Slice& found = slices_[static_cast<std::size_t>(number % std::ssize(slices_))];
  if (found.number != number) {
    found = {.number = number};
  }
  return found;
}

void RollingWindow::set(TimeNs now_ns, double value) {
  check(now_ns >= at_ns_, "time does not go back");
  const std::int64_t last = now_ns / slice_ns_;
  for (std::int64_t n = std::max(at_ns_ / slice_ns_, last - kSlices); n <= last; ++n) {
    const TimeNs from_ns = std::max(at_ns_, n * slice_ns_);
    const TimeNs until_ns = std::min(now_ns, (n + 1) * slice_ns_);
    Slice& covered = slice(n);
    covered.integral += value_ * static_cast<double>(until_ns - from_ns);
    covered.max = std::max(covered.max, value_);
  }
  at_ns_ = now_ns;
  value_ = value;
}

double RollingWindow::mean(TimeNs now_ns) const {
  const TimeNs length_ns = kSlices * slice_ns_;
  const std::int64_t oldest = now_ns / slice_ns_ - kSlices;
  double integral = value_ * static_cast<double>(std::clamp<TimeNs>(now_ns - at_ns_, 0, length_ns));
  for (const Slice& slice : slices_) {
    if (slice.number > oldest) {
      integral += slice.integral;
    } else if (slice.number == oldest && slice.number >= 0) {
      integral += slice.integral * part_of_oldest(now_ns, slice_ns_);
    }
  }
  return integral / static_cast<double>(length_ns);
}

double RollingWindow::max(TimeNs now_ns) const {
  double max = value_;
  for (const Slice& slice : slices_) {
    if (slice.number >= now_ns / slice_ns_ - kSlices) {
      max = std::max(max, slice.max);
    }
  }
  return max;
}

RollingCount::RollingCount(TimeNs length_ns) : slice_ns_(slice_length(length_ns, kSlices)) {}

void RollingCount::add(TimeNs now_ns, std::int64_t count) {
  const std::int64_t number = now_ns / slice_ns_;
  Slice& slice = slices_[static_cast<std::size_t>(number % std::ssize(slices_))];
  if (slice.number != number) {
    slice = {.number = number};
  }
  slice.count += count;
}

double RollingCount::total(TimeNs now_ns) const {
  const std::int64_t oldest = now_ns / slice_ns_ - kSlices;
  double total = 0;
  for (const Slice& slice : slices_) {
    if (slice.number > oldest) {
      total += static_cast<double>(slice.count);
    } else if (slice.number == oldest && slice.number >= 0) {
      total += static_cast<double>(slice.count) * part_of_oldest(now_ns, slice_ns_);
    }
  }
  return total;
}

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
  // The middle of the bin, as factors go.
  return std::llround(kFirstBinNs * std::pow(kBinGrowth, static_cast<double>(bin) - 0.5));
}

}  // namespace protean
