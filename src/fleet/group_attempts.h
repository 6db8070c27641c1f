#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace protean {

// When policies may ask for groups: after a failure not for a while, which is longer after each in
// a row.
class GroupAttempts {
 public:
  bool may_ask(TimeNs now_ns) const { return now_ns >= not_before_ns_; }
  // The time before which no policy may ask.
  TimeNs not_before_ns() const { return not_before_ns_; }
  // A wish was refused.
  void refused(TimeNs now_ns) { not_before_ns_ = now_ns + kNsPerS; }
  // Takes the number of changes that have failed so far. Returns true if one of them is a further
  // attempt: what fails while no policy may ask was asked for before.
  bool failed(std::uint64_t failures, TimeNs now_ns) {
    const bool more = failures != failures_seen_;
    failures_seen_ = failures;
    if (!more || !may_ask(now_ns)) {
      return false;
    }
    const bool in_a_row = now_ns - not_before_ns_ <= (kNsPerS << kMostDoublings);
    failed_in_a_row_ = in_a_row ? failed_in_a_row_ : 0;
    not_before_ns_ = now_ns + (kNsPerS << std::min(failed_in_a_row_++, kMostDoublings));
    return true;
  }

 private:
  static constexpr int kMostDoublings = 5;

  TimeNs not_before_ns_ = 0;
  int failed_in_a_row_ = 0;
  std::uint64_t failures_seen_ = 0;  // of Grouping::failures()
};

}  // namespace protean
