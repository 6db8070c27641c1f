#pragma once

#include <cstdint>
#include <optional>

#include "base/units.h"

namespace protean {

// The KV of a fleet and of its queue, in blocks.
struct KvShortage {
  int replicas = 1;                 // of the fleet
  std::int64_t lacking_blocks = 0;  // blocks that queued requests need beyond all that are free
  std::int64_t blocks_each = 0;     // of a replica that has all layers; 0: not known
};

// Returns the replicas of the fleet, and as many more as hold what queued requests lack.
int replicas_needed(const KvShortage& shortage);

// The number of replicas that a fleet's load asks for. Policies that drop layers, lower precision
// or move requests get a time to meet a shortage: the number rises when KV was short for all that
// time, and to the least that was needed in it. It falls in the same way, so that a scaler is not
// called back at each gap between bursts.
class ReplicaDemand {
 public:
  ReplicaDemand(int replicas, TimeNs after_ns) : after_ns_(after_ns), wanted_(replicas) {}

  // Takes a look at the fleet. Times never decrease.
  void see(const KvShortage& shortage, TimeNs now_ns);

  int wanted() const { return wanted_; }
  // Returns when the number changes if nothing else does; nothing if it stays.
  std::optional<TimeNs> next_ns() const;

 private:
  // The need differs from wanted_, always to the same side.
  struct Trend {
    TimeNs since_ns = 0;
    int nearest = 0;  // the need that was nearest to wanted_
  };

  TimeNs after_ns_;
  int wanted_;
  std::optional<Trend> trend_;
};

}  // namespace protean
