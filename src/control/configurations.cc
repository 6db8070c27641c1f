#include "control/configurations.h"

#include <array>

#include "cost/pruned_spec.h"

namespace protean {
namespace {

constexpr std::array kKvPrecisions = {KvPrecision::kBf16, KvPrecision::kInt8};
constexpr Pruning kTwoOfFour = {.kind = PruningKind::kTwoOfFour};

constexpr Pruning structured(int percent) {
  return {.kind = PruningKind::kStructured, .percent = percent};
}

bool can_share(const ModelSpec& spec, const Configuration& configuration) {
  const AttentionSpec& attention = pruned_spec(spec, configuration.pruning).attention;
  return attention.kv_heads % configuration.tensor == 0;
}

// Adds every legal division among devices of each way to store the model.
std::vector<Configuration> divided(const ModelSpec& spec, int devices,
                                   std::span<const Configuration> stored) {
  std::vector<Configuration> all;
  for (int tensor = 1; tensor <= std::min(devices, kMostTensor); tensor *= 2) {
    for (int stages = 1; tensor * stages <= devices && stages <= spec.layers; ++stages) {
      for (Configuration configuration : stored) {
        configuration.tensor = tensor;
        configuration.stages = stages;
        if (can_share(spec, configuration)) {
          all.push_back(configuration);
        }
      }
    }
  }
  return all;
}

std::span<const WeightMethod> methods_of(Precision precision) {
  static constexpr std::array kFew = {WeightMethod::kAwq, WeightMethod::kGptq,
                                      WeightMethod::kNearest};
  static constexpr std::array kMany = {WeightMethod::kNearest};
  return precision.quantised() && weight_bits(precision) < 8 ? std::span<const WeightMethod>(kFew)
                                                             : kMany;
}

std::span<const Pruning> prunings_of(Precision precision) {
  static constexpr std::array kPrunings = {Pruning(), structured(25), kTwoOfFour};
  return std::span(kPrunings).first(precision == Precision::kBf16 ? 3 : 2);
}

}  // namespace

std::vector<Configuration> configurations_of(const ModelSpec& spec, int devices,
                                             std::span<const Precision> precisions) {
  std::vector<Configuration> stored;
  for (const Precision weights : precisions) {
    for (const WeightMethod method : methods_of(weights)) {
      for (const KvPrecision kv : kKvPrecisions) {
        for (const Pruning& pruning : prunings_of(weights)) {
          stored.push_back({.weights = weights, .method = method, .kv = kv, .pruning = pruning});
        }
      }
    }
  }
  return divided(spec, devices, stored);
}

bool loads_as(const ModelSpec& spec, const Configuration& configuration) {
  const bool pairs =
      spec.stored.precision == Precision::kS24 && configuration.weights == Precision::kBf16;
  return configuration.method == WeightMethod::kNearest &&
         configuration.pruning == (pairs ? kTwoOfFour : Pruning());
}

std::vector<Configuration> iserve_configurations(const ModelSpec& spec, int devices) {
  std::vector<Configuration> stored;
  for (const KvPrecision kv : kKvPrecisions) {
    stored.push_back({.weights = Precision::kBf16, .kv = kv});
    stored.push_back({.weights = Precision::kW8, .kv = kv});
    stored.push_back({.weights = Precision::kW4, .kv = kv});
    stored.push_back({.weights = Precision::kW4, .method = WeightMethod::kGptq, .kv = kv});
  }
  for (const Pruning pruning : {kTwoOfFour, structured(12), structured(25), structured(50)}) {
    stored.push_back({.weights = Precision::kBf16, .pruning = pruning});
  }
  return divided(spec, devices, stored);
}

}  // namespace protean
