#include "control/plan_morph.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/overloaded.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::int64_t kResizes = 4;      // resizes of a plan, about, for any number of halves
constexpr std::int64_t kLeastGrowth = 8;  // a growth by less than this part of all blocks waits

// The swaps that a growth leaves pages for if blocks come first. Pages for more would hold up the
// requests that wait for blocks.
constexpr int kSwapsBeforeBlocks = 3;

// Returns the pages of the variant that a swap replaces.
std::int64_t pages_now(const ModelSpec& spec, const Form& form, SwapComponent swap,
                       std::int64_t page_bytes) {
  swap.to = precision_of(form, swap.layer, swap.component);
  return pages_to_prepare(spec, form, swap, page_bytes);
}

// Builds a morph step by step, keeping account of the pages.
class Planner {
 public:
  Planner(Form from, const Form& to, const FormBounds& bounds, const MorphAim& aim)
      : form_(std::move(from)), to_(to), spec_(bounds.spec), budget_(bounds.budget), aim_(aim) {
    free_ = budget_.pages - form_pages(spec_, form_, budget_.page_bytes);
    resize_ = std::max<std::int64_t>({ceil_div(std::abs(to.kv.blocks - form_.kv.blocks), kResizes),
                                      form_.kv.blocks / kLeastGrowth, 1});
  }

  Status swap(const SwapComponent& swap) {
    const std::int64_t needed = pages_for(swap);
    if (needed > free_for(swap)) {
      shrink_by_pages(needed - free_for(swap),
                      aim_.lends_to_embeddings && swap.component == Component::kEmbeddings);
    }
    if (needed > free_for(swap)) {
      return lacking(needed - free_for(swap), to_string(swap));
    }
    take(swap);
    return {};
  }

  // Lends the pages of idle blocks to the first swaps, if that lets one more be prepared at once.
  void lend(std::span<const SwapComponent> next) {
    const std::int64_t wanted = pages_of_next(next);
    if (aim_.idle_blocks <= 0 || wanted - free_ < budget_.reserve) {
      return;
    }
    const std::int64_t blocks =
        std::max({blocks_leaving(wanted), form_.kv.blocks - aim_.idle_blocks, std::int64_t{1}});
    const Form less = after(form_, ResizeKv{blocks});
    if (form_pages(spec_, form_, budget_.page_bytes) -
            form_pages(spec_, less, budget_.page_bytes) >=
        budget_.reserve) {
      take(ResizeKv{blocks});
    }
  }

  // Grows KV into the free pages, if that is worth a step. Pages that the next swaps take stay
  // free, so that a swap need not wait for the one before it, and so do pages that a later swap
  // would lack.
  void grow(std::span<const SwapComponent> next) {
    const std::int64_t left = std::max({pages_of_next(next), pages_in_turn(next), budget_.reserve});
    const std::int64_t blocks = std::min(to_.kv.blocks, blocks_leaving(left));
    const std::int64_t more = blocks - form_.kv.blocks;
    if (more >= resize_ || (next.empty() && more > 0)) {
      take(ResizeKv{blocks});
    }
  }

  void shrink_to_end() {
    if (form_.kv.blocks > to_.kv.blocks) {
      take(ResizeKv{to_.kv.blocks});
    }
  }

  Status finish() {
    if (form_ == to_) {
      return {};
    }
    const Form resized = after(form_, ResizeKv{to_.kv.blocks});
    return lacking(form_pages(spec_, resized, budget_.page_bytes) - budget_.pages + budget_.reserve,
                   to_string(ResizeKv{to_.kv.blocks}));
  }

  std::vector<MorphStep> steps() { return std::move(steps_); }

 private:
  // Returns the free pages of the fullest device that holds the component.
  std::int64_t free_for(const SwapComponent& swap) const {
    std::int64_t most = 0;
    for (std::size_t device = 0; device < form_.group.size(); ++device) {
      if (!form_.group[device].of(swap.layer, swap.component).empty()) {
        most = std::max(most, pages_on(spec_, form_, static_cast<int>(device), budget_.page_bytes));
      }
    }
    return budget_.pages - most;
  }

  // Returns the blocks with which so many pages are left free on every device.
  std::int64_t blocks_leaving(std::int64_t pages) const {
    return kv_blocks_beside(spec_, form_, budget_.pages - pages, budget_.page_bytes);
  }

  // Returns the pages that all swaps prepared at once need together.
  std::int64_t pages_of_next(std::span<const SwapComponent> next) const {
    const auto at_once =
        static_cast<std::size_t>(aim_.faster_steps ? kSwapsAtOnce : kSwapsBeforeBlocks);
    std::int64_t pages = 0;
    for (const SwapComponent& swap : next.first(std::min(next.size(), at_once))) {
      pages += pages_to_prepare(spec_, form_, swap, budget_.page_bytes);
    }
    return pages;
  }

  // Returns the pages that have to be free so that all swaps can be done one after the other. A
  // half takes the room of those before it; the embeddings need more at once.
  std::int64_t pages_in_turn(std::span<const SwapComponent> next) const {
    std::int64_t pages = 0;
    std::int64_t given = 0;
    for (const SwapComponent& swap : next) {
      pages = std::max(pages, pages_for(swap) - given);
      given += pages_now(spec_, form_, swap, budget_.page_bytes) -
               pages_to_prepare(spec_, form_, swap, budget_.page_bytes);
    }
    return pages;
  }

  // Returns the pages that have to be free before the swap: for the new variant in addition to the
  // old one, and for the reserve afterwards.
  std::int64_t pages_for(const SwapComponent& swap) const {
    const std::int64_t pages = pages_to_prepare(spec_, form_, swap, budget_.page_bytes);
    return std::max(pages,
                    pages - pages_now(spec_, form_, swap, budget_.page_bytes) + budget_.reserve);
  }

  // Shrinks KV to no less than it has in the end, or if it may lend more, by no more than `pages`.
  void shrink_by_pages(std::int64_t pages, bool may_lend) {
    const std::int64_t fitting = blocks_leaving(free_ + pages);
    const std::int64_t least =
        may_lend ? std::max<std::int64_t>(std::min(to_.kv.blocks, fitting), 1) : to_.kv.blocks;
    if (form_.kv.blocks > least) {
      take(ResizeKv{std::max(least, std::min(form_.kv.blocks - resize_, fitting))});
    }
  }

  void take(const MorphStep& step) {
    form_ = after(std::move(form_), step);
    free_ = budget_.pages - form_pages(spec_, form_, budget_.page_bytes);
    steps_.push_back(step);
  }

  Error lacking(std::int64_t pages, const std::string& step) const {
    return make_error(
        ErrorCode::kExhausted,
        "{} lacks {} on the way: lower more layers, take fewer KV blocks or give more "
        "memory",
        step, format_bytes(pages * budget_.page_bytes));
  }

  Form form_;
  const Form& to_;
  const ModelSpec& spec_;
  const PageBudget& budget_;
  const MorphAim& aim_;
  std::int64_t free_ = 0;
  std::int64_t resize_ = 1;  // blocks, at least
  std::vector<MorphStep> steps_;
};

std::vector<SwapComponent> swaps_between(const Form& from, const Form& to,
                                         std::span<const SwapTarget> order) {
  std::vector<SwapComponent> swaps;
  const auto add = [&](int layer, Component component) {
    const Precision wanted = precision_of(to, layer, component);
    if (precision_of(from, layer, component) != wanted) {
      swaps.push_back({.layer = layer, .component = component, .to = wanted});
    }
  };
  for (const SwapTarget& target : order) {
    for (const Component half : halves_of(target)) {
      add(target.layer, half);
    }
  }
  add(0, Component::kEmbeddings);
  return swaps;
}

}  // namespace

std::int64_t reserve_pages(const ModelSpec& spec, std::span<const Precision> ladder,
                           std::int64_t page_bytes, const DeviceShare& share) {
  std::int64_t pages = 0;
  for (std::size_t i = 1; i < ladder.size(); ++i) {
    for (const Component half : kLayerHalves) {
      pages = std::max(pages, component_pages(spec, half, ladder[i], page_bytes, share.shards) /
                                  share.shards * share.held);
    }
  }
  return pages;
}

std::int64_t pages_to_prepare(const ModelSpec& spec, const Form& form, const MorphStep& step,
                              std::int64_t page_bytes) {
  const auto for_swap = [&](const SwapComponent& swap) {
    int held = 0;
    for (const Holding& holding : form.group) {
      held = std::max(held, holding.of(swap.layer, swap.component).count);
    }
    return component_pages(spec, swap.component, swap.to, page_bytes, form.shards) / form.shards *
           held;
  };
  const auto for_resize = [&](const ResizeKv&) {
    const Form next = after(form, step);
    std::int64_t more = 0;
    for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
      more = std::max(more, kv_pages_on(spec, next, device, page_bytes) -
                                kv_pages_on(spec, form, device, page_bytes));
    }
    return more;
  };
  const auto for_hold = [&](const HoldShards& hold) {
    const Form next = after(form, step);
    const Precision precision = precision_of(form, hold.layer, hold.component);
    const std::int64_t each =
        component_pages(spec, hold.component, precision, page_bytes, form.shards) / form.shards;
    std::int64_t most = 0;
    for (std::size_t i = 0; i < form.group.size(); ++i) {
      const int device = static_cast<int>(i);
      const ShardRun& had = form.group[i].of(hold.layer, hold.component);
      const std::int64_t kv =
          kv_pages_on(spec, next, device, page_bytes) - kv_pages_on(spec, form, device, page_bytes);
      most = std::max(most, each * new_shards(hold.runs[i], had) + std::max<std::int64_t>(0, kv));
    }
    return most;
  };
  return std::visit(Overloaded{for_swap, for_resize, for_hold}, step);
}

Result<Morph> plan_morph(const Form& from, const Form& to, const FormBounds& bounds,
                         const MorphAim& aim) {
  const ModelSpec& spec = bounds.spec;
  const PageBudget& budget = bounds.budget;
  const auto layers = static_cast<std::size_t>(spec.layers);
  Form only = to;
  only.layer_precision = from.layer_precision;
  only.embeddings = from.embeddings;
  only.kv.blocks = from.kv.blocks;
  if (only != from || from.layer_precision.size() != layers ||
      to.layer_precision.size() != layers || to.kv.blocks <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no morph leads from '{}' to '{}': precisions of layers and a number of KV "
                      "blocks above 0 are what can change",
                      to_string(from), to_string(to));
  }
  const std::int64_t missing =
      form_pages(spec, to, budget.page_bytes) + budget.reserve - budget.pages;
  if (missing > 0) {
    return make_error(ErrorCode::kExhausted,
                      "'{}' lacks {}: lower more layers, take fewer KV blocks or give more memory",
                      to_string(to), format_bytes(missing * budget.page_bytes));
  }
  std::vector<SwapComponent> lowering = swaps_between(from, to, order_of(bounds));
  const auto is_lowering = [&](const SwapComponent& swap) {
    return pages_to_prepare(spec, from, swap, budget.page_bytes) <=
           pages_now(spec, from, swap, budget.page_bytes);
  };
  const auto middle = std::stable_partition(lowering.begin(), lowering.end(), is_lowering);
  std::vector<SwapComponent> raising(std::make_reverse_iterator(lowering.end()),
                                     std::make_reverse_iterator(middle));
  lowering.erase(middle, lowering.end());

  Planner planner(from, to, bounds, aim);
  planner.lend(lowering);
  for (std::size_t i = 0; i < lowering.size(); ++i) {
    if (Status done = planner.swap(lowering[i]); !done) {
      return done.error();
    }
    planner.grow(std::span(lowering).subspan(i + 1));
  }
  planner.grow(raising);
  for (const SwapComponent& swap : raising) {
    if (Status done = planner.swap(swap); !done) {
      return done.error();
    }
  }
  planner.shrink_to_end();
  planner.grow({});
  if (Status done = planner.finish(); !done) {
    return done.error();
  }
  return Morph{.steps = planner.steps()};
}

Result<Morph> plan_with_or_without_embeddings(const Form& from, const Form& to,
                                              const FormBounds& bounds, const MorphAim& aim) {
  Result<Morph> morph = plan_morph(from, to, bounds, aim);
  if (morph.ok() || to.embeddings == from.embeddings) {
    return morph;
  }
  Form without = to;
  without.embeddings = from.embeddings;
  without.kv.blocks = std::min(to.kv.blocks, kv_blocks_beside(bounds, without));
  return plan_morph(from, without, bounds, aim);
}

}  // namespace protean
