#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace protean {

// What MorphServe's Serving Monitor looks at.
struct PressureSample {
  TimeNs oldest_wait_ns = 0;  // time that the oldest waiting request has waited; 0: none waits
  std::int64_t kv_blocks = 0;
  std::int64_t kv_blocks_used = 0;
  std::int64_t kv_blocks_wanted = 0;  // needed by waiting requests and next decodes, and not held
};

// MorphServe's own rule (sections 4.1, 4.4 and 6): if KV usage or the queueing delay exceeds its
// threshold, or blocks cannot be allocated, in several consecutive forward passes, one more layer
// goes to fewer bits; if nothing does for as long, one is restored. Single-threaded.
class PaperRule {
 public:
  void step_done(const PressureSample& sample);

  // Returns the place on the path to go to from place `at` of `size`, `step` places at a time.
  // `blocks_above` are the KV blocks of the place above.
  std::size_t next(std::size_t at, std::size_t size, std::size_t step,
                   std::int64_t blocks_above) const;

 private:
  PressureSample last_;
  int over_ = 0;   // the latest samples that were over a threshold, in a row
  int under_ = 0;  // or under all of them
};

}  // namespace protean
