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

// Plans the way down to fewer bits step by step, keeping account of the pages.
class Lowering {
 public:
  // `blocks`: of KV in the end.
  Lowering(Form from, std::int64_t blocks, const FormBounds& bounds, std::int64_t idle_blocks)
      : form_(std::move(from)),
        blocks_(blocks),
        kept_(std::min(form_.kv.blocks, blocks)),
        spec_(bounds.spec),
        budget_(bounds.budget),
        idle_blocks_(idle_blocks) {
    free_ = budget_.pages - form_pages(spec_, form_, budget_.page_bytes);
    resize_ = std::max<std::int64_t>({ceil_div(std::abs(blocks - form_.kv.blocks), kResizes),
                                      form_.kv.blocks / kLeastGrowth, 1});
  }

  // Takes swaps in their order. If the next one lacks pages, a later one that has them comes first,
  // since each gives back more than it takes. If none has, KV shrinks for the smallest, in the
  // worst case to fewer blocks than before and after: so no page has to be kept free for swaps.
  Status run(std::vector<SwapComponent> swaps) {
    lend(swaps);
    while (!swaps.empty()) {
      const auto lacking_less = [this](const SwapComponent& a, const SwapComponent& b) {
        return std::max(lacking_for(a), std::int64_t{0}) <
               std::max(lacking_for(b), std::int64_t{0});
      };
      const auto next = std::min_element(swaps.begin(), swaps.end(), lacking_less);
      if (lacking_for(*next) > 0) {
        shrink_by_pages(lacking_for(*next));
      }
      if (lacking_for(*next) > 0) {
        return lacking(lacking_for(*next), to_string(*next));
      }
      take(*next);
      swaps.erase(next);
      grow(swaps);
    }
    if (form_.kv.blocks != blocks_) {
      take(ResizeKv{blocks_});
    }
    return free_ < budget_.reserve ? lacking(budget_.reserve - free_, to_string(ResizeKv{blocks_}))
                                   : Status();
  }

  const std::vector<MorphStep>& steps() const { return steps_; }

 private:
  // Lends the pages of idle blocks to the first swaps, if that lets one more be prepared at once.
  void lend(std::span<const SwapComponent> next) {
    const std::int64_t wanted = pages_of_next(next);
    std::int64_t one = budget_.reserve;
    for (const SwapComponent& swap : next) {
      one = std::max(one, swap.component == Component::kEmbeddings ? 0 : pages_of(swap));
    }
    if (idle_blocks_ <= 0 || wanted - free_ < one) {
      return;
    }
    const std::int64_t blocks =
        std::max({blocks_leaving(wanted), form_.kv.blocks - idle_blocks_, std::int64_t{1}});
    const Form less = after(form_, ResizeKv{blocks});
    if (form_pages(spec_, form_, budget_.page_bytes) -
            form_pages(spec_, less, budget_.page_bytes) >=
        one) {
      take(ResizeKv{blocks});
    }
  }

  // Grows KV into the free pages, if that is worth a step: as it is if KV gets back all that it
  // lent. Pages that the next swaps take stay free, so that a swap need not wait for the one before
  // it, and so do pages that a later swap would lack.
  void grow(std::span<const SwapComponent> next) {
    const std::int64_t left = std::max({pages_of_next(next), pages_in_turn(next), budget_.reserve});
    const std::int64_t blocks = std::min(blocks_, blocks_leaving(left));
    const std::int64_t lent = kept_ - form_.kv.blocks;
    if (blocks - form_.kv.blocks >= (lent > 0 ? std::min(lent, resize_) : resize_)) {
      take(ResizeKv{blocks});
    }
  }

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
    return kv_blocks_that_fit(spec_, form_, budget_.pages - pages, budget_.page_bytes);
  }

  std::int64_t pages_of(const SwapComponent& swap) const {
    return pages_to_prepare(spec_, form_, swap, budget_.page_bytes);
  }

  // Returns the pages that all swaps prepared at once need together.
  std::int64_t pages_of_next(std::span<const SwapComponent> next) const {
    const auto at_once =
        static_cast<std::size_t>(idle_blocks_ > 0 ? kSwapsAtOnce : kSwapsBeforeBlocks);
    std::int64_t pages = 0;
    for (const SwapComponent& swap : next.first(std::min(next.size(), at_once))) {
      pages += pages_of(swap);
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
      given += pages_now(spec_, form_, swap, budget_.page_bytes) - pages_of(swap);
    }
    return pages;
  }

  // Returns the pages that have to be free before the swap: for the new variant in addition to the
  // old one, and for the reserve afterwards.
  std::int64_t pages_for(const SwapComponent& swap) const {
    const std::int64_t pages = pages_of(swap);
    return std::max(pages,
                    pages - pages_now(spec_, form_, swap, budget_.page_bytes) + budget_.reserve);
  }
  std::int64_t lacking_for(const SwapComponent& swap) const {
    return pages_for(swap) - free_for(swap);
  }

  // Shrinks KV so that so many more pages are free, or as far as it can.
  void shrink_by_pages(std::int64_t pages) {
    const std::int64_t fitting = std::max<std::int64_t>(blocks_leaving(free_ + pages), 1);
    const std::int64_t worth_a_step = std::max(blocks_, form_.kv.blocks - resize_);
    const std::int64_t blocks = std::min(fitting, worth_a_step);
    if (blocks < form_.kv.blocks) {
      take(ResizeKv{blocks});
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
  const std::int64_t blocks_;
  const std::int64_t kept_;  // blocks that KV has before and after
  const ModelSpec& spec_;
  const PageBudget& budget_;
  const std::int64_t idle_blocks_;
  std::int64_t free_ = 0;
  std::int64_t resize_ = 1;  // blocks, at least
  std::vector<MorphStep> steps_;
};

// Returns the steps that lead back to `from`, which `steps` leave. They need no more pages: a swap
// finds those that its counterpart gave back.
std::vector<MorphStep> reversed(const std::vector<MorphStep>& steps, Form from) {
  std::vector<MorphStep> back;
  for (const MorphStep& step : steps) {
    if (const auto* swap = std::get_if<SwapComponent>(&step)) {
      back.emplace_back(SwapComponent{swap->layer, swap->component,
                                      precision_of(from, swap->layer, swap->component)});
    } else {
      back.emplace_back(ResizeKv{from.kv.blocks});
    }
    from = after(std::move(from), step);
  }
  std::reverse(back.begin(), back.end());
  return back;
}

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

// Returns the steps of both. If they meet in two resizes of KV, the first one is left out.
std::vector<MorphStep> joined(const Form& from, std::vector<MorphStep> down,
                              const std::vector<MorphStep>& up) {
  auto next = up.begin();
  if (!down.empty() && !up.empty() && kv_blocks_of(down.back()) && kv_blocks_of(up.front())) {
    down.pop_back();
    const Form before = after(from, Morph{.steps = down});
    next += kv_blocks_of(up.front()) == before.kv.blocks ? 1 : 0;
  }
  down.insert(down.end(), next, up.end());
  return down;
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
      const ShardRun& run = holding.of(swap.layer, swap.component);
      held = std::max(held, shards_kept(form, swap.component, run).count);
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
      const ShardRun has = shards_kept(form, hold.component, hold.runs[i]);
      const ShardRun had =
          shards_kept(form, hold.component, form.group[i].of(hold.layer, hold.component));
      const std::int64_t kv =
          kv_pages_on(spec, next, device, page_bytes) - kv_pages_on(spec, form, device, page_bytes);
      most = std::max(most, each * new_shards(has, had) + std::max<std::int64_t>(0, kv));
    }
    return most;
  };
  return std::visit(Overloaded{for_swap, for_resize, for_hold}, step);
}

std::int64_t least_kv_blocks(const Form& from, const Morph& morph) {
  std::int64_t least = from.kv.blocks;
  for (const MorphStep& step : morph.steps) {
    least = std::min(least, kv_blocks_of(step).value_or(least));
  }
  return least;
}

Result<Morph> plan_morph(const Form& from, const Form& to, const FormBounds& bounds,
                         std::int64_t idle_blocks) {
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
  std::vector<SwapComponent> down = swaps_between(from, to, order_of(bounds));
  const auto is_lowering = [&](const SwapComponent& swap) {
    return pages_to_prepare(spec, from, swap, budget.page_bytes) <=
           pages_now(spec, from, swap, budget.page_bytes);
  };
  const auto raised = std::stable_partition(down.begin(), down.end(), is_lowering);
  Form lowest = to;  // everything lowered and nothing raised
  std::vector<SwapComponent> up(raised, down.end());
  down.erase(raised, down.end());
  for (SwapComponent& swap : up) {  // as the way down from `to`
    swap.to = precision_of(from, swap.layer, swap.component);
    precision_of(lowest, swap.layer, swap.component) = swap.to;
  }
  lowest.kv.blocks = up.empty()     ? to.kv.blocks
                     : down.empty() ? from.kv.blocks
                                    : std::max(from.kv.blocks, to.kv.blocks);
  Lowering there(from, lowest.kv.blocks, bounds, idle_blocks);
  Lowering back(to, lowest.kv.blocks, bounds, 0);
  if (Status done = there.run(std::move(down)); !done) {
    return done.error();
  }
  if (Status done = back.run(std::move(up)); !done) {
    return done.error();
  }
  return Morph{.steps = joined(from, there.steps(), reversed(back.steps(), to))};
}

Result<Morph> plan_with_or_without_embeddings(const Form& from, const Form& to,
                                              const FormBounds& bounds, std::int64_t idle_blocks) {
  Result<Morph> morph = plan_morph(from, to, bounds, idle_blocks);
  if (morph.ok() || to.embeddings == from.embeddings) {
    return morph;
  }
  Form without = to;
  without.embeddings = from.embeddings;
  without.kv.blocks = std::min(to.kv.blocks, kv_blocks_that_fit(bounds, without));
  return plan_morph(from, without, bounds, idle_blocks);
}

}  // namespace protean
