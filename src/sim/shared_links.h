#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "base/units.h"
#include "cost/device_profile.h"

namespace protean {

// The links over which simulated devices receive what other devices send. A link carries one
// transfer after another, in the order of calls, and a transfer takes the first times that are
// free, in pieces if need be. So transfers that begin together end when one of all their bytes
// would, and one that begins before the transfer of an earlier call uses the gap.
//
// `links` names the link of each device. Without `links`, each device has a link to itself, and no
// transfer waits for another.
class SharedLinks {
 public:
  // Begins a transfer of so many bytes to each device, and returns when all have arrived.
  TimeNs arrive_ns(const Transfer& cost, std::span<const int> links,
                   std::span<const std::int64_t> bytes, TimeNs from_ns);
  // Takes so long of each link, and returns when the last one is free.
  TimeNs take(std::span<const int> links, TimeNs from_ns, TimeNs busy_ns);

  // Returns the time from `from_ns` to `until_ns` in which no transfer has taken any of the links.
  TimeNs free_ns(std::span<const int> links, TimeNs from_ns, TimeNs until_ns) const;
  // Returns when all links have been free at the same time for so long since `from_ns`.
  TimeNs after_ns(std::span<const int> links, TimeNs from_ns, TimeNs wanted_ns) const;

  // Forgets transfers that have ended by then. No later call may ask about a time before it.
  void forget_before(TimeNs at_ns);

 private:
  // Ends of the times that transfers take, by their begins. They do not overlap.
  using Taken = std::map<TimeNs, TimeNs>;

  static Taken::const_iterator first_after(const Taken& taken, TimeNs at_ns);
  static void unite(Taken& taken, TimeNs begin_ns, TimeNs end_ns);
  static TimeNs after_ns(const Taken& taken, TimeNs from_ns, TimeNs wanted_ns);
  static TimeNs take(Taken& taken, TimeNs from_ns, TimeNs busy_ns);
  Taken taken_on_any(std::span<const int> links) const;

  std::map<int, Taken> taken_;  // by link
};

// The links of a copy in the background, which uses what transfers leave.
struct BackgroundLinks {
  const SharedLinks* shared = nullptr;  // null: the copy waits for no transfer
  std::span<const int> links;

  TimeNs free_ns(TimeNs from_ns, TimeNs until_ns) const {
    return shared == nullptr ? until_ns - from_ns : shared->free_ns(links, from_ns, until_ns);
  }
  TimeNs after_ns(TimeNs from_ns, TimeNs wanted_ns) const {
    return shared == nullptr ? from_ns + wanted_ns : shared->after_ns(links, from_ns, wanted_ns);
  }
};

}  // namespace protean
