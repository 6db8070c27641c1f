#include "cost/hold_pages.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace protean {

std::int64_t pages_to_hold(const ModelSpec& spec, const Form& form, const HoldShards& hold,
                           int device, std::int64_t page_bytes) {
  const Form next = after(form, hold);
  const auto index = static_cast<std::size_t>(device);
  const std::int64_t each =
      component_pages(spec, hold.component, precision_of(form, hold.layer, hold.component),
                      page_bytes, form.shards) /
      form.shards;
  const std::int64_t kv =
      kv_pages_on(spec, next, device, page_bytes) - kv_pages_on(spec, form, device, page_bytes);
  const ShardRun has = shards_kept(form, hold.component, hold.runs[index]);
  const ShardRun had =
      shards_kept(form, hold.component, form.group[index].of(hold.layer, hold.component));
  return each * new_shards(has, had) + std::max<std::int64_t>(0, kv);
}

std::size_t preparable(const ModelSpec& spec, const Form& form, std::span<const MorphStep> steps,
                       const PageBudget& budget) {
  std::vector<std::int64_t> used;
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    used.push_back(pages_on(spec, form, device, budget.page_bytes));
  }
  Form before = form;
  std::size_t count = 0;
  for (const MorphStep& step : steps) {
    for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
      std::int64_t& pages = used[static_cast<std::size_t>(device)];
      pages += pages_to_hold(spec, before, std::get<HoldShards>(step), device, budget.page_bytes);
      if (pages > budget.pages && count > 0) {
        return count;
      }
    }
    before = after(std::move(before), step);
    ++count;
  }
  return count;
}

}  // namespace protean
