#include "control/ranking.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/check.h"
#include "control/configurations.h"

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

// Steps between bounds that messages name: of latencies, and of costs as a share of the cost, which
// is at least the last of four digits.
constexpr double kBoundMs = 0.1;
constexpr double kBoundShare = 1e-3;

// Returns the text of a bound that `value` keeps: that of `value`, or of a step more if its last
// digit is rounded down.
std::string rounded_up(double value, double step, std::string (*text_of)(double bound)) {
  std::string text = text_of(value);
  return std::strtod(text.c_str(), nullptr) < value ? text_of(value + step) : text;
}

// True unless the configuration that is nearest to a bound of latency uses fewer devices than
// others do, or already shares layers among as many as any configuration may.
bool more_devices_may_help(std::span<const EstimatedConfiguration> candidates,
                           const EstimatedConfiguration& nearest) {
  const Configuration& is = nearest.configuration;
  return is.tensor < kMostTensor &&
         std::none_of(candidates.begin(), candidates.end(), [&](const EstimatedConfiguration& of) {
           return of.configuration.devices() > is.devices();
         });
}

Error missed(std::span<const EstimatedConfiguration> candidates, std::span<const Score> scores,
             const Intent& intent) {
  const auto nearest =
      std::min_element(scores.begin(), scores.end(), [&](const Score& a, const Score& b) {
        return intent.latency_slo_ms ? a.latency_ms < b.latency_ms : a.cost < b.cost;
      });
  const auto& best = candidates[static_cast<std::size_t>(nearest - scores.begin())];
  const std::string reached =
      intent.latency_slo_ms
          ? rounded_up(nearest->latency_ms, kBoundMs,
                       [](double ms) { return fmt::format("{:.1f}", ms); }) +
                " ms"
          : "a cost of " + rounded_up(nearest->cost, nearest->cost * kBoundShare,
                                      [](double cost) { return fmt::format("{:.4g}", cost); });
  return make_error(
      ErrorCode::kExhausted, "no configuration keeps {}: the nearest, {}, takes {}: give as much{}",
      to_string(intent), to_string(best.configuration), reached,
      intent.latency_slo_ms && more_devices_may_help(candidates, best) ? ", or add devices" : "");
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
