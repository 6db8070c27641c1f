#include "control/deployment.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

Error does_not_fit(const DeploymentWish& wish, const Deployment& found,
                   std::span<const DeviceState> devices) {
  std::size_t nearest = found.ranked.front();
  std::int64_t least = -1;
  for (const std::size_t index : found.ranked) {
    const EstimatedConfiguration& candidate = found.candidates[index];
    const std::int64_t missing =
        missing_bytes(candidate.configuration, devices, candidate.memory, wish.spec.layers);
    if (least < 0 || missing < least) {
      least = missing;
      nearest = index;
    }
  }
  const Configuration& configuration = found.candidates[nearest].configuration;
  const int count = configuration.devices();
  return make_error(
      ErrorCode::kExhausted,
      "no configuration that keeps {} fits the free memory: the nearest, {}, needs {} more on {}: "
      "free memory, or add devices",
      to_string(wish.intent), to_string(configuration), format_bytes(least),
      count == 1 ? "the device with most" : fmt::format("each of the {} devices with most", count));
}

// Chooses and places the first configuration from this rank on that fits. Returns false if there is
// none.
bool choose_from(std::size_t rank, const DeploymentWish& wish, std::span<const DeviceState> devices,
                 Deployment& found) {
  for (; rank < found.ranked.size(); ++rank) {
    const EstimatedConfiguration& candidate = found.candidates[found.ranked[rank]];
    const Configuration& configuration = candidate.configuration;
    if (fits_devices(configuration, devices, candidate.memory, wish.spec.layers)) {
      auto placement =
          place(configuration, devices, candidate.memory, wish.spec.layers, wish.placement);
      check(placement.has_value(), "what fits some devices can be placed");
      found.chosen = found.ranked[rank];
      found.placement = *std::move(placement);
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<EstimatedConfiguration> estimate(const ModelSpec& spec, const PlannedLoad& load,
                                             std::span<const Configuration> configurations,
                                             const StepsOf& steps_of) {
  std::vector<EstimatedConfiguration> candidates;
  for (const Configuration& configuration : configurations) {
    const ConfigurationMemory memory = memory_of(spec, configuration, load);
    const Division even = even_division(spec.layers, configuration.tensor, configuration.stages);
    candidates.push_back({.configuration = configuration,
                          .latency = latency_of(spec, configuration, load, steps_of(configuration)),
                          .memory = memory,
                          .total_bytes = memory.total_bytes(even.stage_layers)});
  }
  return candidates;
}

Result<Deployment> deploy(const DeploymentWish& wish,
                          std::vector<EstimatedConfiguration> candidates,
                          std::span<const DeviceState> devices) {
  Deployment found{.candidates = std::move(candidates)};
  for (const EstimatedConfiguration& candidate : found.candidates) {
    found.scores.push_back(score_of(candidate, wish.load.output_tokens, wish.pricing));
  }
  auto ranked = rank(found.candidates, found.scores, wish.intent);
  if (!ranked.ok()) {
    return ranked.error();
  }
  found.ranked = *std::move(ranked);
  if (!choose_from(0, wish, devices, found)) {
    return does_not_fit(wish, found, devices);
  }
  return found;
}

std::optional<Deployment> next_deployment(const DeploymentWish& wish, Deployment found,
                                          std::span<const DeviceState> devices) {
  const auto now = std::find(found.ranked.begin(), found.ranked.end(), found.chosen);
  check(now != found.ranked.end(), "a deployment was chosen by its rank");
  const auto next = static_cast<std::size_t>(now - found.ranked.begin()) + 1;
  return choose_from(next, wish, devices, found) ? std::optional(std::move(found)) : std::nullopt;
}

}  // namespace protean
