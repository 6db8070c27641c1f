#pragma once

#include <cstdint>

#include "base/units.h"
#include "contract/memory_use.h"
#include "engine/recent_most.h"

namespace protean {

// The quota of pages that a model goes to.
struct QuotaGoal {
  std::int64_t pages = 0;              // the budget's, unless the quota has to shrink
  std::int64_t pages_after_morph = 0;  // smaller quota after the morph under way; 0: none
  bool own_is_lost = false;            // pages that this model lent may never come back
  TimeNs lacks_since_ns = -1;          // since when the quota is too small; -1: it is not
};

// Why KV is resized although no policy decided about it.
struct KvResizes {
  bool shrinks = false;    // the morph under way is for a smaller quota
  bool grows = false;      // the pin's latest morph was for memory that came back
  bool pin_grows = false;  // the pin names no KV blocks, so that KV may grow
  bool waits = false;      // for free pages: a step of KV failed, or pages came during a hold
};

// The latest report of this model's memory to the other models.
struct MemoryReport {
  MemoryUse latest;
  TimeNs at_ns = -kNsPerS;
  bool stale = true;         // `latest` is older than the latest change
  std::int64_t blocks = -1;  // that requests needed at the latest event
  bool ruled = false;        // the policy ruled at the latest event
};

// What a model that shares its devices remembers of trades of memory.
struct MemoryTrade {
  std::int64_t largest_kv_blocks = 0;  // that the device has addresses for
  QuotaGoal wanted;
  KvResizes kv;
  MemoryReport told;
  RecentMost needed_blocks{5 * kNsPerS};  // a model lends only what it did not need for so long
};

}  // namespace protean
