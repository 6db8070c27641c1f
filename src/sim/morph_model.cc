#include "sim/morph_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/overloaded.h"
#include "control/plan_morph.h"
#include "cost/group_cost.h"
#include "cost/hold_pages.h"
#include "cost/link_bytes.h"
#include "cost/memory.h"

namespace protean {

MorphModel::MorphModel(Devices devices, const MorphCost& cost, std::uint64_t seed,
                       std::vector<int> links)
    : spec_(std::move(devices.spec)),
      budget_(devices.budget),
      cost_(cost),
      links_(std::move(links)),
      random_(seed),
      form_(std::move(devices.form)) {}

// Returns the pages that preparing the step takes on each device. Devices of uneven stages hold KV
// of unequally many layers.
MorphModel::Pages MorphModel::pages_of(const MorphStep& step) const {
  const auto on_device = [&](int device) {
    const auto swap_pages = [&](const SwapComponent& swap) {
      const Holding& holding = form_.group[static_cast<std::size_t>(device)];
      return holding.of(swap.layer, swap.component).empty()
                 ? 0
                 : pages_to_prepare(spec_, form_, swap, budget_.page_bytes);
    };
    const auto resize_pages = [&](const ResizeKv&) {
      const std::int64_t next = kv_pages_on(spec_, after(form_, step), device, budget_.page_bytes);
      const std::int64_t now = kv_pages_on(spec_, form_, device, budget_.page_bytes);
      return std::max<std::int64_t>(0, next - now);
    };
    const auto hold_pages = [&](const HoldShards& hold) {
      return pages_to_hold(spec_, form_, hold, device, budget_.page_bytes);
    };
    return std::visit(Overloaded{swap_pages, resize_pages, hold_pages}, step);
  };
  Pages pages;
  for (int device = 0; device < static_cast<int>(form_.group.size()); ++device) {
    pages.push_back(on_device(device));
  }
  return pages;
}

MorphModel::Pages MorphModel::free_pages() const {
  Pages free;
  for (int device = 0; device < static_cast<int>(form_.group.size()); ++device) {
    std::int64_t& left =
        free.emplace_back(budget_.pages - pages_on(spec_, form_, device, budget_.page_bytes));
    for (const auto& [id, prepared] : prepared_) {
      left -= prepared.pages[static_cast<std::size_t>(device)];
    }
  }
  return free;
}

// Returns the time of a step's copy if no step of the model ran.
double MorphModel::copy_us(const MorphStep& step, const Pages& pages) const {
  const std::int64_t most = *std::max_element(pages.begin(), pages.end());
  const auto swap_us = [&](const SwapComponent& swap) {
    return static_cast<double>(component_bytes(spec_, swap.component, swap.to)) /
           cost_.copy_bytes_per_us;
  };
  const auto attach_us = [&](const ResizeKv&) { return cost_.page_us * static_cast<double>(most); };
  const auto fetch_us = [&](const HoldShards& hold) {
    const auto bytes =
        static_cast<double>(most_bytes(links_, weight_bytes_fetched(spec_, form_, hold)));
    return bytes / cost_.fetch_bytes_per_us + cost_.page_us * static_cast<double>(most);
  };
  return std::visit(Overloaded{swap_us, attach_us, fetch_us}, step);
}

void MorphModel::prepare(MorphId id, const MorphStep& step, TimeNs now_ns) {
  Pages pages = pages_of(step);
  const Pages free = free_pages();
  for (std::size_t device = 0; device < pages.size(); ++device) {
    check(pages[device] <= free[device], "there are free pages for a prepared step");
  }
  random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
  const bool fails = now_ns < cost_.failing_until_ns ||
                     static_cast<double>(random_ >> 11) * 0x1.0p-53 < cost_.failure_probability;
  Copy copy{.event = {.id = id},
            .left_us = copy_us(step, pages),
            .fetches = std::holds_alternative<HoldShards>(step)};
  if (fails) {
    copy.event.failure = make_error(ErrorCode::kCorrupt, "simulated damage of the variant");
  } else {
    prepared_[id] = {.step = step, .pages = std::move(pages)};
  }
  copies_.push_back(std::move(copy));
}

std::optional<TimeNs> MorphModel::copied_ns(TimeNs now_ns, TimeNs busy_until_ns,
                                            const BackgroundLinks& links) const {
  if (copies_.empty()) {
    return std::nullopt;
  }
  const double left_ns = copies_.front().left_us * static_cast<double>(kNsPerUs);
  const auto busy_ns = static_cast<double>(links.free_ns(now_ns, std::max(now_ns, busy_until_ns)));
  const double copied_ns = busy_ns * cost_.share_during_steps;
  const TimeNs needed_ns = std::llround(left_ns <= copied_ns ? left_ns / cost_.share_during_steps
                                                             : busy_ns + left_ns - copied_ns);
  return links.after_ns(now_ns, needed_ns);
}

void MorphModel::copy_until(TimeNs now_ns, TimeNs until_ns, TimeNs busy_until_ns,
                            const BackgroundLinks& links) {
  if (copies_.empty()) {
    return;
  }
  const TimeNs steps_end_ns = std::clamp(busy_until_ns, now_ns, until_ns);
  const TimeNs busy_ns = links.free_ns(now_ns, steps_end_ns);
  const auto idle_ns = static_cast<double>(links.free_ns(steps_end_ns, until_ns));
  double& left_us = copies_.front().left_us;
  left_us -= (static_cast<double>(busy_ns) * cost_.share_during_steps + idle_ns) / kNsPerUs;
  left_us = std::max(0.0, left_us);
}

MorphReady MorphModel::take_copied() {
  check(!copies_.empty(), "a copy has ended");
  MorphReady ready = std::move(copies_.front().event);
  copies_.pop_front();
  return ready;
}

MorphDone MorphModel::commit(MorphId id) {
  const auto found = prepared_.find(id);
  check(found != prepared_.end(), "a step is prepared before its commit");
  form_ = after(std::move(form_), found->second.step);
  prepared_.erase(found);
  const Pages free = free_pages();
  const std::int64_t least = *std::min_element(free.begin(), free.end());
  check(least >= 0, "a form fits its devices");
  return {.id = id, .pages_free = least};
}

void MorphModel::abort(MorphId id) {
  prepared_.erase(id);
  std::erase_if(copies_, [id](const Copy& copy) { return copy.event.id == id; });
}

TimeNs MorphModel::moving_ns(std::size_t blocks) const {
  const auto bytes =
      static_cast<double>(blocks) * static_cast<double>(kv_block_bytes(spec_, form_.kv));
  return std::llround(bytes / cost_.copy_bytes_per_us * kNsPerUs);
}

}  // namespace protean
