#include "control/ranking.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace protean {
namespace {

constexpr double kUsPerMs = 1000;
constexpr double kMsPerS = 1000;
constexpr double kSPerHour = 3600;

// What an intent minimises, then what breaks ties.
using Order = std::array<double, 5>;

Order order_of(const EstimatedConfiguration& candidate, const Score& score, Objective objective) {
  return {objective_of(candidate, score, objective), score.latency_ms, score.cost,
          static_cast<double>(candidate.total_bytes),
          static_cast<double>(candidate.configuration.devices())};
}

bool keeps(const Intent& intent, const Score& score) {
  return (!intent.latency_slo_ms || score.latency_ms <= *intent.latency_slo_ms) &&
         (!intent.cost_slo || score.cost <= *intent.cost_slo);
}

Error missed(std::span<const EstimatedConfiguration> candidates, std::span<const Score> scores,
             const Intent& intent) {
  const auto nearest =
      std::min_element(scores.begin(), scores.end(), [&](const Score& a, const Score& b) {
        return intent.latency_slo_ms ? a.latency_ms < b.latency_ms : a.cost < b.cost;
      });
  const auto& best = candidates[static_cast<std::size_t>(nearest - scores.begin())];
  const std::string reached = intent.latency_slo_ms
                                  ? fmt::format("{:.1f} ms", nearest->latency_ms)
                                  : fmt::format("a cost of {:.4g}", nearest->cost);
  return make_error(ErrorCode::kExhausted,
                    "no configuration keeps {}: the nearest, {}, takes {}: give as much, or add "
                    "devices",
                    to_string(intent), to_string(best.configuration), reached);
}

}  // namespace

Score score_of(const EstimatedConfiguration& candidate, int output_tokens, const Pricing& pricing) {
  const double latency_ms =
      (candidate.latency.ttft_us + output_tokens * candidate.latency.tpot_us) / kUsPerMs;
  const double hours = latency_ms / kMsPerS / kSPerHour;
  const int devices = candidate.configuration.devices();
  const double memory_share =
      pricing.device_bytes > 0
          ? static_cast<double>(candidate.total_bytes) / static_cast<double>(pricing.device_bytes)
          : 0;
  double use = 0;  // device-hours
  switch (pricing.formula) {
    case CostFormula::kMemoryTime:
      use = memory_share * hours;
      break;
    case CostFormula::kMemory:
      use = memory_share;
      break;
    case CostFormula::kDeviceTime:
      use = devices * hours;
      break;
  }
  return {.latency_ms = latency_ms,
          .cost = use * pricing.device_hour,
          .device_seconds = devices * latency_ms / kMsPerS};
}

double objective_of(const EstimatedConfiguration& candidate, const Score& score,
                    Objective objective) {
  switch (objective) {
    case Objective::kLatency:
      return score.latency_ms;
    case Objective::kCost:
      return score.cost;
    case Objective::kMemory:
      return static_cast<double>(candidate.total_bytes);
    case Objective::kDeviceHours:
      return score.device_seconds;
  }
  return 0;
}

Result<std::vector<std::size_t>> rank(std::span<const EstimatedConfiguration> candidates,
                                      std::span<const Score> scores, const Intent& intent) {
  check(candidates.size() == scores.size() && !candidates.empty(), "each candidate has a score");
  std::vector<std::size_t> ranked;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (keeps(intent, scores[i])) {
      ranked.push_back(i);
    }
  }
  if (ranked.empty()) {
    return missed(candidates, scores, intent);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [&](std::size_t a, std::size_t b) {
    return order_of(candidates[a], scores[a], intent.objective) <
           order_of(candidates[b], scores[b], intent.objective);
  });
  return ranked;
}

}  // namespace protean
