#include "sim/device_timeline.h"

#include <algorithm>
#include <utility>

namespace protean {
namespace {

constexpr TimeNs kUnknown = -1;

void add(StepWork& sum, const StepWork& more) {
  sum.tokens += more.tokens;
  sum.sequences += more.sequences;
  sum.logit_rows += more.logit_rows;
  sum.context_tokens += more.context_tokens;
  sum.kv_tokens += more.kv_tokens;
  sum.kv_least_tokens += more.kv_least_tokens;
}

bool within(const Copy& copy, const Copy& home) {
  return std::all_of(copy.begin(), copy.end(), [&](int device) {
    return std::find(home.begin(), home.end(), device) != home.end();
  });
}

}  // namespace

std::vector<HomesStretch> way_of(std::vector<Stretch> stretches, std::span<const Copy> homes) {
  std::vector<HomesStretch> way;
  for (Stretch& stretch : stretches) {
    HomesStretch& added =
        way.emplace_back(HomesStretch{.stretch = std::move(stretch), .copy_of_home = {}});
    const std::vector<Copy>& copies = added.stretch.copies;
    for (const Copy& home : homes) {
      const auto own = std::find_if(copies.begin(), copies.end(),
                                    [&](const Copy& copy) { return within(copy, home); });
      added.copy_of_home.push_back(
          own == copies.end() ? 0 : static_cast<std::size_t>(own - copies.begin()));
    }
  }
  return way;
}

std::vector<TimeNs> DeviceTimeline::run(std::span<const HomesStretch> way,
                                        std::span<const StepWork> works, TimeNs now_ns,
                                        const Times& times) {
  std::vector<TimeNs> ready_ns(works.size(), now_ns);
  std::vector<const Copy*> at(works.size(), nullptr);
  TimeNs begun_ns = kUnknown;
  TimeNs ended_ns = now_ns;
  TimeNs busy_ns = 0;
  for (const HomesStretch& next : way) {
    for (std::size_t c = 0; c < next.stretch.copies.size(); ++c) {
      const Copy& copy = next.stretch.copies[c];
      StepWork work;
      TimeNs start_ns = now_ns;
      for (std::size_t home = 0; home < works.size(); ++home) {
        if (next.copy_of_home[home] != c || works[home].tokens == 0) {
          continue;
        }
        const bool moves = at[home] != nullptr && *at[home] != copy;
        start_ns = std::max(start_ns,
                            moves ? times.send(works[home], copy, ready_ns[home]) : ready_ns[home]);
        add(work, works[home]);
      }
      if (work.tokens == 0) {
        continue;
      }
      for (const int device : copy) {
        start_ns = std::max(start_ns, free_ns_[static_cast<std::size_t>(device)]);
      }
      const TimeNs took_ns = times.compute(copy.size(), work, next.stretch.part);
      const TimeNs end_ns = start_ns + took_ns;
      for (const int device : copy) {
        free_ns_[static_cast<std::size_t>(device)] = end_ns;
      }
      for (std::size_t home = 0; home < works.size(); ++home) {
        if (next.copy_of_home[home] == c) {
          ready_ns[home] = end_ns;
          at[home] = &copy;
        }
      }
      begun_ns = begun_ns == kUnknown ? start_ns : begun_ns;
      ended_ns = std::max(ended_ns, end_ns);
      busy_ns += took_ns * std::ssize(copy);
    }
  }
  if (way.size() > 1 && works.size() == 1) {
    const TimeNs from_ns = std::max(begun_ns, counted_until_ns_);
    pipeline_.busy_ns += busy_ns;
    pipeline_.span_ns += std::max<TimeNs>(0, ended_ns - from_ns) * std::ssize(free_ns_);
    counted_until_ns_ = std::max(counted_until_ns_, ended_ns);
  }
  return ready_ns;
}

TimeNs DeviceTimeline::meet(TimeNs now_ns, TimeNs busy_ns) {
  const TimeNs end_ns = std::max(now_ns, all_free_ns()) + busy_ns;
  std::fill(free_ns_.begin(), free_ns_.end(), end_ns);
  return end_ns;
}

TimeNs DeviceTimeline::all_free_ns() const {
  return *std::max_element(free_ns_.begin(), free_ns_.end());
}

}  // namespace protean
