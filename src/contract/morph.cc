#include "contract/morph.h"

#include "base/check.h"

namespace protean {

std::span<const LayerHalf> halves_of(const SwapUnit& unit) {
  const std::span<const LayerHalf> both(kLayerHalves);
  return unit.half ? both.subspan(static_cast<std::size_t>(*unit.half), 1) : both;
}

std::vector<SwapUnit> swap_units(int layers, bool halves) {
  std::vector<SwapUnit> units;
  for (int layer = 0; layer < layers; ++layer) {
    if (!halves) {
      units.push_back({layer, std::nullopt});
      continue;
    }
    for (const LayerHalf half : kLayerHalves) {
      units.push_back({layer, half});
    }
  }
  return units;
}

std::string to_string(const MorphStep& step) {
  if (const auto* swap = std::get_if<SwapHalf>(&step)) {
    return fmt::format("layer {} {} to {}", swap->layer, to_string(swap->half),
                       to_string(swap->to));
  }
  return fmt::format("KV to {} blocks", std::get<ResizeKv>(step).blocks);
}

Form after(Form form, const MorphStep& step) {
  if (const auto* swap = std::get_if<SwapHalf>(&step)) {
    check(swap->layer >= 0 && swap->layer < std::ssize(form.layer_precision),
          "a step is about a layer that the form has");
    form.layer_precision[static_cast<std::size_t>(swap->layer)].of(swap->half) = swap->to;
  } else {
    form.kv.blocks = std::get<ResizeKv>(step).blocks;
  }
  return form;
}

std::string_view to_string(MorphMode mode) {
  switch (mode) {
    case MorphMode::kOff:
      return "off";
    case MorphMode::kAccuracy:
      return "accuracy";
    case MorphMode::kBalanced:
      return "balanced";
    case MorphMode::kPerformance:
      return "performance";
  }
  return "?";
}

}  // namespace protean
