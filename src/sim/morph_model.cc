#include "sim/morph_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/overloaded.h"
#include "control/plan_morph.h"
#include "cost/memory.h"

namespace protean {

MorphModel::MorphModel(const MorphConfig& config, const MorphCost& cost, std::uint64_t seed)
    : config_(config), cost_(cost), random_(seed), form_(config.start) {}

std::int64_t MorphModel::free_pages() const {
  const FormBounds& bounds = config_.bounds;
  std::int64_t free =
      bounds.budget.pages - form_pages(bounds.spec, form_, bounds.budget.page_bytes);
  for (const auto& [id, prepared] : prepared_) {
    free -= prepared.pages;
  }
  return free;
}

void MorphModel::prepare(MorphId id, const MorphStep& step, TimeNs now_ns) {
  const FormBounds& bounds = config_.bounds;
  const std::int64_t pages = pages_to_prepare(bounds.spec, form_, step, bounds.budget.page_bytes);
  check(pages <= free_pages(), "there are free pages for a prepared step");
  random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
  const bool fails = now_ns < cost_.failing_until_ns ||
                     static_cast<double>(random_ >> 11) * 0x1.0p-53 < cost_.failure_probability;
  const auto copy_us = [&](const SwapComponent& swap) {
    return static_cast<double>(component_bytes(bounds.spec, swap.component, swap.to)) /
           cost_.copy_bytes_per_us;
  };
  const auto attach_us = [&](const ResizeKv&) {
    return cost_.page_us * static_cast<double>(pages);
  };
  const auto fetch_us = [&](const HoldShards&) {
    const std::int64_t bytes = pages * bounds.budget.page_bytes;
    return static_cast<double>(bytes) / cost_.copy_bytes_per_us;
  };
  Copy copy{.event = {.id = id},
            .left_us = std::visit(Overloaded{copy_us, attach_us, fetch_us}, step)};
  if (fails) {
    copy.event.failure = make_error(ErrorCode::kCorrupt, "simulated damage of the variant");
  } else {
    prepared_[id] = {.step = step, .pages = pages};
  }
  copies_.push_back(std::move(copy));
}

std::optional<TimeNs> MorphModel::copied_ns(TimeNs now_ns, TimeNs busy_until_ns) const {
  if (copies_.empty()) {
    return std::nullopt;
  }
  const double left_ns = copies_.front().left_us * static_cast<double>(kNsPerUs);
  const auto busy_ns = static_cast<double>(std::max<TimeNs>(0, busy_until_ns - now_ns));
  const double copied_ns = busy_ns * cost_.share_during_steps;
  return now_ns + std::llround(left_ns <= copied_ns ? left_ns / cost_.share_during_steps
                                                    : busy_ns + left_ns - copied_ns);
}

void MorphModel::copy_until(TimeNs now_ns, TimeNs until_ns, TimeNs busy_until_ns) {
  if (copies_.empty()) {
    return;
  }
  const TimeNs busy_ns = std::clamp<TimeNs>(busy_until_ns - now_ns, 0, until_ns - now_ns);
  const auto idle_ns = static_cast<double>(until_ns - now_ns - busy_ns);
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
  check(free_pages() >= 0, "a form fits its device");
  return {.id = id, .pages_free = free_pages()};
}

void MorphModel::abort(MorphId id) {
  prepared_.erase(id);
  std::erase_if(copies_, [id](const Copy& copy) { return copy.event.id == id; });
}

TimeNs MorphModel::moving_ns(std::size_t blocks) const {
  const auto bytes = static_cast<double>(blocks) *
                     static_cast<double>(kv_block_bytes(config_.bounds.spec, form_.kv));
  return std::llround(bytes / cost_.copy_bytes_per_us * kNsPerUs);
}

}  // namespace protean
