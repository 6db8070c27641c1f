#include "contract/morph.h"

#include "base/check.h"

namespace protean {

std::span<const ModelPart> halves_of(const SwapUnit& unit) {
  const std::span<const ModelPart> both(kLayerHalves);
  return unit.half ? both.subspan(static_cast<std::size_t>(*unit.half), 1) : both;
}

std::vector<SwapUnit> swap_units(int layers, bool halves) {
  std::vector<SwapUnit> units;
  for (int layer = 0; layer < layers; ++layer) {
    if (!halves) {
      units.push_back({layer, std::nullopt});
      continue;
    }
    for (const ModelPart half : kLayerHalves) {
      units.push_back({layer, half});
    }
  }
  return units;
}

std::string to_string(const MorphStep& step) {
  if (const auto* swap = std::get_if<SwapPart>(&step)) {
    return fmt::format("{} to {}", part_name(swap->layer, swap->part), to_string(swap->to));
  }
  return fmt::format("KV to {} blocks", std::get<ResizeKv>(step).blocks);
}

Form after(Form form, const MorphStep& step) {
  if (const auto* swap = std::get_if<SwapPart>(&step)) {
    check(swap->layer >= 0 && swap->layer < std::ssize(form.layer_precision),
          "a step is about a layer that the form has");
    precision_of(form, swap->layer, swap->part) = swap->to;
  } else {
    form.kv.blocks = std::get<ResizeKv>(step).blocks;
  }
  return form;
}

Form after(Form form, const Morph& morph) {
  for (const MorphStep& step : morph.steps) {
    form = after(std::move(form), step);
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
