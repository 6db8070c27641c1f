#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/configuration.h"
#include "contract/intent.h"
#include "cost/configuration_cost.h"
#include "cost/fingerprint.h"

namespace protean {

// A configuration and what it is estimated to take.
struct EstimatedConfiguration {
  Configuration configuration;
  Latency latency;
  ConfigurationMemory memory;
  std::int64_t total_bytes = 0;  // memory of all devices, with stages as even as possible
};

// What serving costs on average on the devices at hand.
struct Pricing {
  CostFormula formula = CostFormula::kMemoryTime;
  double device_hour = 1;         // price of one device for an hour
  std::int64_t device_bytes = 0;  // memory of one device
};

// The numbers that intents compare.
struct Score {
  double latency_ms = 0;      // time of an answer: TTFT + output tokens * TPOT
  double cost = 0;            // in the unit of the price
  double device_seconds = 0;  // device time of an answer
};

Score score_of(const EstimatedConfiguration& candidate, int output_tokens, const Pricing& pricing);

// Returns the number that an intent with this objective minimises.
double objective_of(const EstimatedConfiguration& candidate, const Score& score,
                    Objective objective);

// Returns the indices of the candidates that keep the intent's bound, the best first. Candidates
// that are equal in what the intent minimises are ordered by latency, cost, memory, devices and
// then as given. If no candidate keeps the bound, fails and names the one that comes nearest.
Result<std::vector<std::size_t>> rank(std::span<const EstimatedConfiguration> candidates,
                                      std::span<const Score> scores, const Intent& intent);

}  // namespace protean
