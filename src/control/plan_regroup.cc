#include "control/plan_regroup.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cost/hold_pages.h"

namespace protean {
namespace {

struct Held {
  int layer = 0;
  Component component = Component::kEmbeddings;
};

int shards_held(const Form& form) {
  int sum = 0;
  for (const Holding& holding : form.group) {
    sum += holding.embeddings.count;
    for (const Holding::Layer& layer : holding.layers) {
      sum += layer.attention.count + layer.mlp.count;
    }
  }
  return sum;
}

// Returns the layers in the order in which devices exchange their KV: from the outer ends inward,
// one of each stage in turn. So a device that takes KV of a layer gives back that of another one
// before it takes more. `narrow` is the form that has the fewer copies. Layers of which it has
// several come in any order, since they do not change.
std::vector<int> exchange_order(const Form& narrow, std::vector<int> inward) {
  std::map<int, int> layers_of;  // so far, by the first device that holds them
  std::map<int, int> turn;       // by layer
  for (const int layer : inward) {
    const auto copies = copies_of(narrow.group, layer, Component::kAttention, narrow.shards);
    turn[layer] = copies.size() == 1 ? layers_of[copies.front().front()]++ : 0;
  }
  std::ranges::stable_sort(inward, {}, [&](int layer) { return turn[layer]; });
  return inward;
}

// Returns all components in the order in which groups drop them to come to the form.
std::vector<Held> dropping_order(const Form& narrow) {
  std::vector<int> inward;
  const int layers = static_cast<int>(narrow.layer_precision.size());
  for (int first = 0, last = layers - 1; first <= last; ++first, --last) {
    inward.push_back(first);
    if (last > first) {
      inward.push_back(last);
    }
  }
  std::vector<Held> order = {{}};
  for (const int layer : inward) {
    order.push_back({layer, Component::kMlp});
  }
  for (const int layer : exchange_order(narrow, inward)) {
    order.push_back({layer, Component::kAttention});
  }
  return order;
}

// Returns how many layers before this one the device holds.
int layers_before(const Holding& holding, std::size_t layer) {
  return static_cast<int>(std::count_if(holding.layers.begin(),
                                        holding.layers.begin() + static_cast<std::ptrdiff_t>(layer),
                                        [](const auto& held) { return !held.empty(); }));
}

Status divide_shards(Holding& holding, int home, int homes) {
  const auto divide = [&](ShardRun& run) {
    const bool divides = run.count % homes == 0;
    run = {run.first + home * (run.count / homes), run.count / homes};
    return divides;
  };
  bool divides = divide(holding.embeddings);
  for (Holding::Layer& layer : holding.layers) {
    divides = divide(layer.attention) && divide(layer.mlp) && divides;
  }
  return divides ? Status()
                 : make_error(ErrorCode::kInvalidArgument,
                              "{} replicas cannot divide what each device holds: serve with a "
                              "--max-tensor-parallel-size that is at least as large",
                              homes);
}

// Only devices of the first and the last layer keep the embeddings.
void drop_inner_embeddings(Holding& holding) {
  if (holding.layers.front().empty() && holding.layers.back().empty()) {
    holding.embeddings = {};
  }
}

Status divide_layers(Holding& holding, int home, int homes) {
  const std::size_t layers = holding.layers.size();
  const int held = layers_before(holding, layers);
  if (held < homes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} replicas cannot divide {} layers: group fewer replicas", homes, held);
  }
  const std::vector<int> each = even_division(held, 1, homes).stage_layers;
  int begin = 0;
  for (int before = 0; before < home; ++before) {
    begin += each[static_cast<std::size_t>(before)];
  }
  const int end = begin + each[static_cast<std::size_t>(home)];
  const Holding whole = holding;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const int index = layers_before(whole, layer);
    if (index < begin || index >= end) {
      holding.layers[layer] = {};
    }
  }
  drop_inner_embeddings(holding);
  return {};
}

std::vector<HoldShards> steps_between(const Form& from, const Form& to) {
  const bool fetches = shards_held(to) > shards_held(from);
  std::vector<Held> order = dropping_order(fetches ? from : to);
  if (fetches) {
    std::reverse(order.begin(), order.end());
  }
  std::vector<HoldShards> steps;
  for (const Held& held : order) {
    HoldShards hold{.layer = held.layer, .component = held.component, .runs = {}};
    bool changes = false;
    for (std::size_t device = 0; device < from.group.size(); ++device) {
      hold.runs.push_back(to.group[device].of(held.layer, held.component));
      changes = changes || hold.runs.back() != from.group[device].of(held.layer, held.component);
    }
    if (changes) {
      steps.push_back(std::move(hold));
    }
  }
  return steps;
}

// kExhausted: a device lacks pages for the step.
Status check_step(const ModelSpec& spec, const Form& form, const HoldShards& hold,
                  const PageBudget& budget) {
  const Form next = after(form, hold);
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    const std::int64_t needed =
        std::max(pages_on(spec, form, device, budget.page_bytes) +
                     pages_to_hold(spec, form, hold, device, budget.page_bytes),
                 pages_on(spec, next, device, budget.page_bytes));
    if (needed > budget.pages) {
      return make_error(ErrorCode::kExhausted, "{} lacks {} on device {}",
                        to_string(MorphStep(hold)),
                        format_bytes((needed - budget.pages) * budget.page_bytes), device);
    }
  }
  if (copies_of(next.group, hold.layer, hold.component, next.shards).empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{} leaves no whole copy",
                      to_string(MorphStep(hold)));
  }
  return {};
}

// Returns the first device that holds a part of a component after the step.
int keeper_after(const HoldShards& hold) {
  const auto keeper = std::find_if(hold.runs.begin(), hold.runs.end(),
                                   [](const ShardRun& run) { return !run.empty(); });
  return static_cast<int>(keeper - hold.runs.begin());
}

// Returns the steps from the form, which drop, in an order that takes the first step that fits the
// pages each time: a device may have to give back KV of some layers before it takes that of another
// one. The layers of a device keep their order, even if a later one fits because it is not fetched.
// So the way from a form in between is the rest of this one, and the way back its reverse.
std::vector<HoldShards> fitting_order(const ModelSpec& spec, Form form,
                                      std::vector<HoldShards> steps, const PageBudget& budget) {
  for (auto next = steps.begin(); next != steps.end(); ++next) {
    std::set<int> waiting;  // devices that have no room for their next layer
    const auto fits = std::find_if(next, steps.end(), [&](const HoldShards& hold) {
      if (hold.component != next->component || waiting.contains(keeper_after(hold))) {
        return false;
      }
      const bool has_room = check_step(spec, form, hold, budget).ok();
      if (!has_room) {
        waiting.insert(keeper_after(hold));
      }
      return has_room;
    });
    if (fits == steps.end()) {
      return steps;
    }
    std::rotate(next, fits, fits + 1);
    form = after(std::move(form), *next);
  }
  return steps;
}

// Returns the steps that lead back to the form from which these lead.
std::vector<HoldShards> reversed(const Form& form, std::vector<HoldShards> steps) {
  std::reverse(steps.begin(), steps.end());
  for (HoldShards& hold : steps) {
    for (std::size_t device = 0; device < form.group.size(); ++device) {
      hold.runs[device] = form.group[device].of(hold.layer, hold.component);
    }
  }
  return steps;
}

// Returns the most KV blocks of each of `homes` with which devices that lack pages for the step
// have enough; 0: none.
std::int64_t fewer_blocks(const ModelSpec& spec, Form form, const HoldShards& hold, int homes,
                          const PageBudget& budget) {
  std::int64_t most = 0;
  std::int64_t beyond = form.kv.blocks / homes;
  while (most + 1 < beyond) {
    const std::int64_t next = most + (beyond - most) / 2;
    form.kv.blocks = next * homes;
    (check_step(spec, form, hold, budget).ok() ? most : beyond) = next;
  }
  return most;
}

}  // namespace

bool of_equal_devices(std::span<const Form> homes) {
  const auto as_first = [](const Holding& a, const Holding& b) {
    return a.lacking_pages == b.lacking_pages;
  };
  return std::all_of(homes.begin(), homes.end(), [&](const Form& home) {
    return std::ranges::equal(home.group, homes.front().group, as_first);
  });
}

Form joined_form(std::span<const Form> homes) {
  Form joined = homes.front();
  joined.group.clear();
  joined.kv.blocks = 0;
  const bool equal =
      of_equal_devices(homes) && std::all_of(homes.begin(), homes.end(), [&](const Form& home) {
        return home.kv.blocks == homes.front().kv.blocks;
      });
  for (const Form& home : homes) {
    joined.kv.blocks += home.kv.blocks;
    for (const Holding& holding : home.group) {
      Holding& added = joined.group.emplace_back(holding);
      added.device = DeviceId{static_cast<std::int32_t>(joined.group.size()) - 1};
      added.home_blocks = equal ? 0 : home.kv.blocks;
    }
  }
  return joined;
}

Form joined_form(const Form& home, int homes) {
  return joined_form(std::vector<Form>(static_cast<std::size_t>(homes), home));
}

Result<Form> divided_form(const Form& home, int homes, GroupBy by) {
  Form form = joined_form(home, homes);
  for (std::size_t device = 0; device < form.group.size(); ++device) {
    const int nth = static_cast<int>(device / home.group.size());
    Holding& holding = form.group[device];
    const Status divided = by == GroupBy::kShards ? divide_shards(holding, nth, homes)
                                                  : divide_layers(holding, nth, homes);
    if (!divided.ok()) {
      return divided.error();
    }
  }
  return form;
}

Result<Morph> plan_regroup(const ModelSpec& spec, const Form& from, const Form& to,
                           const PageBudget& budget) {
  const bool fetches = shards_held(to) > shards_held(from);
  std::vector<HoldShards> steps = steps_between(from, to);
  if (from.group.front().home_blocks > 0) {  // unequal pipelines
    steps = fitting_order(spec, fetches ? to : from,
                          fetches ? steps_between(to, from) : std::move(steps), budget);
    steps = fetches ? reversed(to, std::move(steps)) : std::move(steps);
  }
  Morph morph;
  Form form = from;
  for (HoldShards& hold : steps) {
    if (Status can = check_step(spec, form, hold, budget); !can.ok()) {
      return can.error();
    }
    form = after(std::move(form), hold);
    morph.steps.emplace_back(std::move(hold));
  }
  return morph;
}

Result<Form> rebalanced_form_in(const ModelSpec& spec, std::span<const Form> homes,
                                const PageBudget& budget) {
  Result<Form> wide = rebalanced_form(spec, homes, budget);
  if (!wide.ok()) {
    return wide;
  }
  const Form joined = joined_form(homes);
  for (const Result<Morph>& way :
       {plan_regroup(spec, joined, *wide, budget), plan_regroup(spec, *wide, joined, budget)}) {
    if (!way.ok()) {
      return way.error();
    }
  }
  return wide;
}

Result<std::int64_t> kv_blocks_to_regroup(const ModelSpec& spec, const Form& home, int homes,
                                          GroupBy by, const PageBudget& budget) {
  const Result<Form> wide = divided_form(home, homes, by);
  if (!wide.ok()) {
    return wide.error();
  }
  const Form joined = joined_form(home, homes);
  std::int64_t blocks = home.kv.blocks;
  for (const bool together : {true, false}) {
    Form form = together ? joined : *wide;
    for (const HoldShards& hold : steps_between(form, together ? *wide : joined)) {
      form.kv.blocks = blocks * homes;
      const Status can = check_step(spec, form, hold, budget);
      if (!can.ok() && can.error().code != ErrorCode::kExhausted) {
        return can.error();
      }
      blocks = can.ok() ? blocks : fewer_blocks(spec, form, hold, homes, budget);
      if (blocks == 0) {
        form.kv.blocks = homes;
        return make_error(
            ErrorCode::kExhausted,
            "{}, however small the KV cache is: group fewer replicas, or give each device "
            "more memory",
            check_step(spec, form, hold, budget).error().message);
      }
      form = after(std::move(form), hold);
    }
  }
  return blocks;
}

}  // namespace protean
