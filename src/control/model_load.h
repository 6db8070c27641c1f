#pragma once

#include <deque>

#include "base/units.h"

namespace protean {

// The load of a model over a window, sampled each second (iServe section 6). Times must not go
// back.
class ModelLoad {
 public:
  static constexpr TimeNs kWindowNs = 120 * kNsPerS;

  explicit ModelLoad(TimeNs window_ns = kWindowNs) : window_ns_(window_ns) {}

  // The model computes `running` requests at this moment.
  void sample(TimeNs now_ns, int running);

  // Returns true if the samples span the window.
  bool is_full() const;
  // Returns the share of the samples in which the model had requests; 0 without samples.
  double busy() const;
  // Returns twice the standard error of busy(), from the means of parts of the window: a load that
  // came or went within it is uncertain.
  double busy_error() const;
  // Returns the mean number of requests at once while it had some; at least 1.
  int batch() const;

 private:
  struct Sample {
    TimeNs at_ns = 0;
    int running = 0;
  };
  TimeNs window_ns_;
  std::deque<Sample> samples_;  // of the window, and the last one before it
};

}  // namespace protean
