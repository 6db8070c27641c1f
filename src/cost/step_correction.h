#pragma once

#include <array>

#include "cost/step_time.h"

namespace protean {

// Corrects predicted step times by the times that steps took: one factor for each precision of
// layers, learned while a server runs. Each factor is the machine's own factor times one of the
// precision, so a slowdown that is seen at one precision is expected at the others too. A step
// moves a factor by at most a few per cent, however long it took, so single steps that the system
// interrupts do not matter, and a lasting change of speed is learned within about 40 steps. O(1)
// time and memory.
class StepCorrection {
 public:
  // Learns from a step. `predicted_us` is predict_us(), without a correction. Ignores times that
  // are not finite and above 0.
  void step_done(const LayerShares& layers, double predicted_us, double took_us);

  // Returns the factor to multiply a prediction with; 1 before any step. For mixed precisions it is
  // the geometric mean of their factors, weighted by their shares.
  double factor(const LayerShares& layers) const;
  double factor(Precision precision) const;

 private:
  double log_factor(const LayerShares& layers) const;

  double machine_ = 0;                            // logarithm of the machine's factor
  std::array<double, kPrecisions.size()> own_{};  // logarithms, by index_of()
};

}  // namespace protean
