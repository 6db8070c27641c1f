#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean {

// What an operator wants of a model (iServe section 4.1).
enum class Objective : std::uint8_t { kLatency, kCost, kMemory, kDeviceHours };

// The intent of a deployment: what it minimises, and at most one bound that it keeps. With a
// latency SLO it minimises cost, with a cost SLO latency.
struct Intent {
  Objective objective = Objective::kCost;
  std::optional<double> latency_slo_ms;  // bound of a whole answer: TTFT and all output tokens
  std::optional<double> cost_slo;        // in the unit of the cost formula
  friend bool operator==(const Intent&, const Intent&) = default;
};

// Reads "min-latency", "min-cost", "min-memory", "min-device-hours", "latency-slo=500ms" (or
// "1.5s") or "cost-slo=0.02".
Result<Intent> parse_intent(std::string_view text);
std::string to_string(const Intent& intent);

// How the cost of serving is counted (iServe section 4.1). Every formula is the sum over devices of
// the price of a device-hour times a use of the device:
//   kMemoryTime   the share of its memory, for the time of one answer
//   kMemory       the share of its memory, for an hour
//   kDeviceTime   the whole device, for the time of one answer
enum class CostFormula : std::uint8_t { kMemoryTime, kMemory, kDeviceTime };

// Reads "memory-time", "memory" or "device-time".
Result<CostFormula> parse_cost_formula(std::string_view text);
std::string_view to_string(CostFormula formula);

}  // namespace protean
