#include "sim/shared_links.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "cost/link_bytes.h"

namespace protean {
namespace {

TimeNs rounded_ns(double us) {
  return std::llround(us * static_cast<double>(kNsPerUs));
}

}  // namespace

// Returns the first time that is taken and ends after `at_ns`.
SharedLinks::Taken::const_iterator SharedLinks::first_after(const Taken& taken, TimeNs at_ns) {
  const auto next = taken.upper_bound(at_ns);
  if (next != taken.begin() && std::prev(next)->second > at_ns) {
    return std::prev(next);
  }
  return next;
}

TimeNs SharedLinks::after_ns(const Taken& taken, TimeNs from_ns, TimeNs wanted_ns) {
  if (wanted_ns <= 0) {
    return from_ns;
  }
  TimeNs at_ns = from_ns;
  for (auto next = first_after(taken, from_ns); next != taken.end(); ++next) {
    const TimeNs gap_ns = std::max<TimeNs>(0, next->first - at_ns);
    if (wanted_ns <= gap_ns) {
      break;
    }
    wanted_ns -= gap_ns;
    at_ns = next->second;
  }
  return at_ns + wanted_ns;
}

void SharedLinks::unite(Taken& taken, TimeNs begin_ns, TimeNs end_ns) {
  for (auto next = first_after(taken, begin_ns); next != taken.end() && next->first <= end_ns;
       next = taken.erase(next)) {
    begin_ns = std::min(begin_ns, next->first);
    end_ns = std::max(end_ns, next->second);
  }
  taken[begin_ns] = end_ns;
}

TimeNs SharedLinks::take(Taken& taken, TimeNs from_ns, TimeNs busy_ns) {
  if (busy_ns <= 0) {
    return from_ns;
  }
  const TimeNs end_ns = after_ns(taken, from_ns, busy_ns);
  unite(taken, from_ns, end_ns);  // all gaps up to the end are taken now
  return end_ns;
}

TimeNs SharedLinks::arrive_ns(const Transfer& cost, std::span<const int> links,
                              std::span<const std::int64_t> bytes, TimeNs from_ns) {
  const auto all_ns = [&](std::int64_t sum) {
    return rounded_ns(cost.time_us(static_cast<double>(sum)));
  };
  if (links.empty()) {
    const std::int64_t most = most_bytes(links, bytes);
    return from_ns + (most > 0 ? all_ns(most) : 0);
  }
  const TimeNs message_ns = rounded_ns(cost.us);
  TimeNs arrived_ns = from_ns;
  for (const auto& [link, sum] : bytes_by_link(links, bytes)) {
    if (sum > 0) {
      const TimeNs sent_ns = take(taken_[link], from_ns, all_ns(sum) - message_ns);
      arrived_ns = std::max(arrived_ns, sent_ns + message_ns);
    }
  }
  return arrived_ns;
}

TimeNs SharedLinks::take(std::span<const int> links, TimeNs from_ns, TimeNs busy_ns) {
  TimeNs end_ns = links.empty() ? from_ns + busy_ns : from_ns;
  for (const int link : std::set<int>(links.begin(), links.end())) {
    end_ns = std::max(end_ns, take(taken_[link], from_ns, busy_ns));
  }
  return end_ns;
}

// Returns the times at which a transfer takes any of the links.
SharedLinks::Taken SharedLinks::taken_on_any(std::span<const int> links) const {
  Taken all;
  for (const int link : std::set<int>(links.begin(), links.end())) {
    const auto found = taken_.find(link);
    if (found != taken_.end()) {
      for (const auto& [begin_ns, end_ns] : found->second) {
        unite(all, begin_ns, end_ns);
      }
    }
  }
  return all;
}

TimeNs SharedLinks::free_ns(std::span<const int> links, TimeNs from_ns, TimeNs until_ns) const {
  const Taken taken = taken_on_any(links);
  TimeNs left_ns = until_ns - from_ns;
  for (auto next = first_after(taken, from_ns); next != taken.end() && next->first < until_ns;
       ++next) {
    left_ns -= std::min(next->second, until_ns) - std::max(next->first, from_ns);
  }
  return left_ns;
}

TimeNs SharedLinks::after_ns(std::span<const int> links, TimeNs from_ns, TimeNs wanted_ns) const {
  return after_ns(taken_on_any(links), from_ns, wanted_ns);
}

void SharedLinks::forget_before(TimeNs at_ns) {
  for (auto& [link, taken] : taken_) {
    taken.erase(taken.cbegin(), first_after(taken, at_ns));
  }
}

}  // namespace protean
