// How pipelines of unequal devices divide layers as one.

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "control/plan_regroup.h"
#include "cost/stage_layers.h"

namespace protean {
namespace {

// The layers [first, end).
struct LayerRange {
  int first = 0;
  int end = 0;
};

// Lets the device hold exactly these layers. A layer that it lacked gets the shards that the device
// holds of its other layers.
void hold_layers(Holding& holding, const LayerRange& range) {
  const Holding::Layer own = *std::find_if(holding.layers.begin(), holding.layers.end(),
                                           [](const auto& held) { return !held.empty(); });
  for (int layer = 0; layer < static_cast<int>(holding.layers.size()); ++layer) {
    Holding::Layer& held = holding.layers[static_cast<std::size_t>(layer)];
    if (layer < range.first || layer >= range.end) {
      held = {};
    } else if (held.empty()) {
      held = own;
    }
  }
  if (range.first > 0 && range.end < std::ssize(holding.layers)) {
    holding.embeddings = {};
  }
}

// Devices that hold the same layers of a home.
struct StageRange {
  LayerRange layers;
  Copy devices;  // indices into the joined form
};

// Returns the stages of all homes; none if their devices do not divide layers alike.
std::vector<StageRange> stages_of_homes(std::span<const Form> homes) {
  std::vector<StageRange> all;
  int devices = 0;
  for (const Form& home : homes) {
    int named = 0;
    for (const Stage& stage : stages_of(home)) {
      StageRange& added = all.emplace_back(StageRange{
          .layers = {stage.first_layer, stage.first_layer + stage.layer_count}, .devices = {}});
      for (const int device : stage.devices) {
        added.devices.push_back(devices + device);
        ++named;
      }
    }
    devices += static_cast<int>(home.group.size());
    const bool alike = std::all_of(all.begin(), all.end(), [&](const StageRange& stage) {
      return stage.devices.size() == all.front().devices.size();
    });
    if (!alike || named != std::ssize(home.group)) {
      return {};
    }
  }
  return all;
}

// Returns the layers of each stage if the stages between these bounds are given to such as hold all
// of them; nothing if that cannot be. A stage that holds fewer of the layers still to come goes
// first, so that the others keep their choice.
std::optional<std::vector<LayerRange>> order_within(std::span<const StageRange> stages,
                                                    std::span<const int> bounds) {
  std::vector<LayerRange> kept(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const LayerRange next{bounds[i], bounds[i + 1]};
    std::optional<std::size_t> best;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const LayerRange& held = stages[stage].layers;
      if (kept[stage].end == 0 && held.first <= next.first && held.end >= next.end &&
          (!best || held.end < stages[*best].layers.end)) {
        best = stage;
      }
    }
    if (!best) {
      return std::nullopt;
    }
    kept[*best] = next;
  }
  return kept;
}

// Returns the stages in the order of the middles of what they hold, so that they lack few of the
// layers between bounds in this order. The first one is the first stage of a home, and the last one
// the last stage of a home, so both have the embeddings.
std::vector<std::size_t> middle_order(std::span<const StageRange> stages) {
  std::vector<std::size_t> order(stages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t stage) {
    return stages[stage].layers.first + stages[stage].layers.end;
  });
  return order;
}

// Returns the layers of each stage if the stages come in this order.
std::vector<LayerRange> give_in_order(std::span<const std::size_t> order,
                                      std::span<const int> bounds) {
  std::vector<LayerRange> given(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    given[order[i]] = {bounds[i], bounds[i + 1]};
  }
  return given;
}

// Returns how many layers the stages get that they do not hold.
int layers_lacking(std::span<const StageRange> stages, std::span<const LayerRange> given) {
  int lacking = 0;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const LayerRange& held = stages[stage].layers;
    const int kept =
        std::min(held.end, given[stage].end) - std::max(held.first, given[stage].first);
    lacking += given[stage].end - given[stage].first - std::max(kept, 0);
  }
  return lacking;
}

// Returns the layers of each stage, equally many or one more. Prefers a division in which stages
// keep the layers that they hold, else the one in which they lack the fewest.
std::optional<std::vector<LayerRange>> balanced_order(std::span<const StageRange> stages,
                                                      int layers) {
  const int count = static_cast<int>(stages.size());
  std::optional<std::vector<LayerRange>> best;
  for (int shift = 0; shift < count && count <= layers; ++shift) {
    std::vector<int> bounds;
    for (int i = 0; i <= count; ++i) {
      bounds.push_back((i * layers + shift) / count);
    }
    if (auto order = order_within(stages, bounds)) {
      return order;
    }
    std::vector<LayerRange> given = give_in_order(middle_order(stages), bounds);
    if (!best || layers_lacking(stages, given) < layers_lacking(stages, *best)) {
      best = std::move(given);
    }
  }
  return best;
}

// Returns the layers of each stage with which the KV cache holds the most blocks; nothing if none
// leave memory for KV.
std::optional<std::vector<LayerRange>> order_by_memory(const ModelSpec& spec, const Form& joined,
                                                       std::span<const StageRange> stages,
                                                       const PageBudget& budget) {
  const std::vector<std::size_t> order = middle_order(stages);
  StageRoom room{.page_bytes = budget.page_bytes,
                 .pages = {},
                 .most_blocks = std::numeric_limits<BlockId>::max() - 1};
  for (const std::size_t stage : order) {
    std::int64_t lacking = 0;
    for (const int device : stages[stage].devices) {
      lacking = std::max(lacking, joined.group[static_cast<std::size_t>(device)].lacking_pages);
    }
    room.pages.push_back(budget.pages - budget.reserve - lacking);
  }
  std::vector<int> bounds = {0};
  for (const int layers :
       stage_layers_for(spec, joined, static_cast<int>(stages.front().devices.size()), room)) {
    bounds.push_back(bounds.back() + layers);
  }
  return bounds.size() == order.size() + 1 ? std::optional(give_in_order(order, bounds))
                                           : std::nullopt;
}

bool of_equal_memory(const Form& joined) {
  return std::ranges::all_of(joined.group, [&](const Holding& holding) {
    return holding.lacking_pages == joined.group.front().lacking_pages;
  });
}

}  // namespace

Result<Form> rebalanced_form(const ModelSpec& spec, std::span<const Form> homes,
                             const PageBudget& budget) {
  Form form = joined_form(homes);
  const std::vector<StageRange> stages = stages_of_homes(homes);
  const int layers = static_cast<int>(form.layer_precision.size());
  const bool even = of_equal_memory(form);
  std::optional<std::vector<LayerRange>> order;
  if (!stages.empty()) {
    order = even ? balanced_order(stages, layers) : order_by_memory(spec, form, stages, budget);
  }
  if (!order) {
    return make_error(ErrorCode::kInvalidArgument,
                      "these replicas cannot become stages that divide {} layers {}: split "
                      "groups into replicas first",
                      layers, even ? "evenly" : "by the memory of their devices");
  }
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const int device : stages[stage].devices) {
      hold_layers(form.group[static_cast<std::size_t>(device)], (*order)[stage]);
    }
  }
  return form;
}

}  // namespace protean
