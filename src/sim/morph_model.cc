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

MorphModel::Ready MorphModel::prepare(MorphId id, const MorphStep& step, TimeNs now_ns) {
  const FormBounds& bounds = config_.bounds;
  const std::int64_t pages = pages_to_prepare(bounds.spec, form_, step, bounds.budget.page_bytes);
  check(pages <= free_pages(), "there are free pages for a prepared step");
  random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
  const bool fails = static_cast<double>(random_ >> 11) * 0x1.0p-53 < cost_.failure_probability;
  const auto copy_us = [&](const SwapComponent& swap) {
    return static_cast<double>(component_bytes(bounds.spec, swap.component, swap.to)) /
           cost_.copy_bytes_per_us;
  };
  const auto attach_us = [&](const ResizeKv&) {
    return cost_.page_us * static_cast<double>(pages);
  };
  const double copying_us = std::visit(Overloaded{copy_us, attach_us}, step);
  copier_free_ns_ =
      std::max(copier_free_ns_, now_ns) + std::llround(copying_us * static_cast<double>(kNsPerUs));
  Ready ready{.at_ns = copier_free_ns_, .event = {.id = id}};
  if (fails) {
    ready.event.failure = make_error(ErrorCode::kCorrupt, "simulated damage of the variant");
  } else {
    prepared_[id] = {.step = step, .pages = pages};
  }
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
  aborted_.insert(id);
}

TimeNs MorphModel::moving_ns(std::size_t blocks) const {
  const auto bytes = static_cast<double>(blocks) *
                     static_cast<double>(kv_block_bytes(config_.bounds.spec, form_.kv));
  return std::llround(bytes / cost_.copy_bytes_per_us * kNsPerUs);
}

}  // namespace protean
