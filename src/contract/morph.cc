#include "contract/morph.h"

#include <charconv>

#include "base/check.h"
#include "base/overloaded.h"

namespace protean {

std::span<const Component> halves_of(const SwapTarget& target) {
  const std::span<const Component> both(kLayerHalves);
  return target.half ? both.subspan(static_cast<std::size_t>(*target.half), 1) : both;
}

std::vector<SwapTarget> swap_targets(int layers, bool halves) {
  std::vector<SwapTarget> targets;
  for (int layer = 0; layer < layers; ++layer) {
    if (!halves) {
      targets.push_back({layer, std::nullopt});
      continue;
    }
    for (const Component half : kLayerHalves) {
      targets.push_back({layer, half});
    }
  }
  return targets;
}

std::string to_string(const MorphStep& step) {
  return std::visit(
      Overloaded{
          [](const SwapComponent& swap) {
            return fmt::format("{} to {}", component_name(swap.layer, swap.component),
                               to_string(swap.to));
          },
          [](const ResizeKv& resize) { return fmt::format("KV to {} blocks", resize.blocks); },
          [](const HoldShards& hold) {
            std::string runs;
            for (const ShardRun& run : hold.runs) {
              runs += runs.empty() ? "" : ", ";
              runs += run.empty()      ? "none"
                      : run.count == 1 ? fmt::format("{}", run.first)
                                       : fmt::format("{}-{}", run.first, run.end() - 1);
            }
            return fmt::format("{} in shards {}", component_name(hold.layer, hold.component), runs);
          }},
      step);
}

std::optional<std::int64_t> kv_blocks_of(const MorphStep& step) {
  using Blocks = std::optional<std::int64_t>;
  return std::visit(Overloaded{[](const SwapComponent&) -> Blocks { return std::nullopt; },
                               [](const ResizeKv& resize) -> Blocks { return resize.blocks; },
                               [](const HoldShards&) -> Blocks { return std::nullopt; }},
                    step);
}

Form after(Form form, const MorphStep& step) {
  std::visit(Overloaded{[&](const SwapComponent& swap) {
                          check(swap.layer >= 0 && swap.layer < std::ssize(form.layer_precision),
                                "a step is about a layer that the form has");
                          precision_of(form, swap.layer, swap.component) = swap.to;
                        },
                        [&](const ResizeKv& resize) { form.kv.blocks = resize.blocks; },
                        [&](const HoldShards& hold) {
                          check(hold.runs.size() == form.group.size(),
                                "a step says what each device of the group holds");
                          for (std::size_t device = 0; device < hold.runs.size(); ++device) {
                            form.group[device].of(hold.layer, hold.component) = hold.runs[device];
                          }
                        }},
             step);
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

Result<MorphMode> parse_morph_mode(std::string_view text) {
  for (const MorphMode mode :
       {MorphMode::kOff, MorphMode::kAccuracy, MorphMode::kBalanced, MorphMode::kPerformance}) {
    if (to_string(mode) == text) {
      return mode;
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "'{}' is not a mode: use off, accuracy, balanced or performance", text);
}

Result<QualityFloor> parse_quality_floor(std::string_view text) {
  QualityFloor floor;
  if (text == "none") {
    return floor;
  }
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  if (error == std::errc() && unit == "bits" && number >= 0 && number <= 16) {
    floor.least_mean_bits = number;
    return floor;
  }
  if (error == std::errc() && unit == "layers" && number >= 0 && number <= 1e6 &&
      number == static_cast<int>(number)) {
    floor.most_lowered_layers = static_cast<int>(number);
    return floor;
  }
  return make_error(
      ErrorCode::kInvalidArgument,
      "'{}' is not a quality floor: say how many bits a weight keeps on average, like "
      "6bits, how many layers may be lowered, like 8layers, or none",
      text);
}

std::string to_string(const QualityFloor& floor) {
  if (floor.most_lowered_layers >= 0) {
    return fmt::format("{}layers", floor.most_lowered_layers);
  }
  return floor.least_mean_bits > 0 ? fmt::format("{}bits", floor.least_mean_bits) : "none";
}

}  // namespace protean
