#include "contract/intent.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "base/nearest.h"

namespace protean {
namespace {

constexpr std::array<std::pair<std::string_view, Objective>, 4> kObjectives = {{
    {"min-latency", Objective::kLatency},
    {"min-cost", Objective::kCost},
    {"min-memory", Objective::kMemory},
    {"min-device-hours", Objective::kDeviceHours},
}};
constexpr std::array<std::pair<std::string_view, CostFormula>, 3> kFormulas = {{
    {"memory-time", CostFormula::kMemoryTime},
    {"memory", CostFormula::kMemory},
    {"device-time", CostFormula::kDeviceTime},
}};
constexpr std::string_view kLatencySlo = "latency-slo";
constexpr std::string_view kCostSlo = "cost-slo";

// Returns a number above 0 and moves `text` behind it; nothing if there is none.
std::optional<double> take_number(std::string_view& text) {
  double number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || !std::isfinite(number) || number <= 0) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

Result<Intent> latency_intent(std::string_view text, std::string_view value) {
  const auto number = take_number(value);
  if (!number || (value != "ms" && value != "s")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "intent {}: the latency of an answer is a time above 0 in ms or s: use for "
                      "example latency-slo=500ms",
                      text);
  }
  return Intent{.objective = Objective::kCost,
                .latency_slo_ms = value == "s" ? *number * 1000 : *number};
}

Result<Intent> cost_intent(std::string_view text, std::string_view value) {
  const auto number = take_number(value);
  if (!number || !value.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "intent {}: a cost is a number above 0 in the unit of --cost: use for "
                      "example cost-slo=0.02",
                      text);
  }
  return Intent{.objective = Objective::kLatency, .cost_slo = *number};
}

Error unknown_intent(std::string_view text, std::string_view word) {
  std::vector<std::string> names;
  for (const auto& [name, objective] : kObjectives) {
    names.emplace_back(name);
  }
  names.emplace_back(kLatencySlo);
  names.emplace_back(kCostSlo);
  const std::string meant = nearest(word, names);
  return make_error(ErrorCode::kInvalidArgument,
                    "intent {} is unknown{}: use min-latency, min-cost, min-memory, "
                    "min-device-hours, latency-slo=TIME or cost-slo=COST",
                    text, meant.empty() ? "" : ", did you mean " + meant + "?");
}

}  // namespace

Result<Intent> parse_intent(std::string_view text) {
  for (const auto& [name, objective] : kObjectives) {
    if (text == name) {
      return Intent{.objective = objective};
    }
  }
  const std::size_t equals = text.find('=');
  const std::string_view word = text.substr(0, equals);
  const std::string_view value = equals == text.npos ? std::string_view() : text.substr(equals + 1);
  if (word == kLatencySlo) {
    return latency_intent(text, value);
  }
  if (word == kCostSlo) {
    return cost_intent(text, value);
  }
  return unknown_intent(text, word);
}

std::string to_string(const Intent& intent) {
  if (intent.latency_slo_ms) {
    return fmt::format("{}={:g}ms", kLatencySlo, *intent.latency_slo_ms);
  }
  if (intent.cost_slo) {
    return fmt::format("{}={:g}", kCostSlo, *intent.cost_slo);
  }
  for (const auto& [name, objective] : kObjectives) {
    if (objective == intent.objective) {
      return std::string(name);
    }
  }
  return "?";
}

Result<CostFormula> parse_cost_formula(std::string_view text) {
  for (const auto& [name, formula] : kFormulas) {
    if (text == name) {
      return formula;
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "cost formula {} is unknown: use memory-time, memory or device-time", text);
}

std::string_view to_string(CostFormula formula) {
  for (const auto& [name, known] : kFormulas) {
    if (known == formula) {
      return name;
    }
  }
  return "?";
}

}  // namespace protean
