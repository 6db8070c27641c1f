#pragma once

#include <cstdint>

#include "base/units.h"

namespace protean {

// The least time between two changes of `needs_bytes` that a model tells.
inline constexpr TimeNs kTellMemoryEveryNs = kNsPerS / 10;

// The memory of each device that a model has and needs, of several models that share devices.
struct MemoryUse {
  std::int64_t quota_bytes = 0;
  std::int64_t needs_bytes = 0;  // for its highest precision, and KV for its requests
  std::uint64_t wish = 0;        // the latest WantQuota that came before
  friend bool operator==(const MemoryUse&, const MemoryUse&) = default;
};

}  // namespace protean
