#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "contract/step.h"
#include "device/cpu/shared_exchange.h"
#include "model/checkpoint.h"
#include "replica/fingerprint_device.h"

namespace protean {

// The devices of a fingerprint: one, or several that share every layer and add sums up as those of
// a group do.
class FingerprintRig {
 public:
  static Result<std::unique_ptr<FingerprintRig>> create(const Checkpoint& checkpoint,
                                                        const FingerprintRigOptions& options);

  // Returns the time of a step through the first `layers` layers at a precision, from the start of
  // its plan to the result of the last device.
  double time_us(const StepPlan& plan, Precision precision, int layers);

  // Reads so much other memory that caches hold what they would hold if the whole model had been
  // computed at this precision. For steps that wait for weights.
  void read_left_out(Precision precision);

  // Returns how fast one thread reads packed weights, as for a swap.
  double copy_bytes_per_us() { return devices_.front()->copy_bytes_per_us(); }

 private:
  explicit FingerprintRig(const FingerprintRigOptions& options);

  cpu::ExchangeBoard board_;
  std::vector<std::unique_ptr<FingerprintDevice>> devices_;  // they use the board
};

}  // namespace protean
