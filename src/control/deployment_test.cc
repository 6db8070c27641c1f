#include "control/deployment.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "base/units.h"
#include "control/configurations.h"
#include "cost/known_models.h"

namespace protean {
namespace {

ModelSpec llama_70b() {
  const auto model = find_known_model("llama-2-70b", true);
  EXPECT_TRUE(model.ok());
  return model->spec;
}

std::vector<EstimatedConfiguration> on_a6000(const ModelSpec& spec, const PlannedLoad& load) {
  const auto device = find_device_profile("a6000");
  EXPECT_TRUE(device.ok());
  return estimate(spec, load, iserve_configurations(spec, 8), [&](const Configuration& one) {
    return ConfigurationSteps{
        .cost = roofline_cost(*device, spec, one.tensor, {.weights = one.stored(), .kv = one.kv}),
        .send = device->send};
  });
}

TEST(Configurations, ThePapersSpaceHas180OfLlama70bOn8Devices) {
  const std::vector<Configuration> all = iserve_configurations(llama_70b(), 8);
  EXPECT_EQ(all.size(), 180U);
  std::set<std::string> names;
  std::set<std::pair<int, int>> parallel;
  for (const Configuration& one : all) {
    names.insert(to_string(one));
    parallel.insert({one.tensor, one.stages});
    EXPECT_LE(one.devices(), 8);
  }
  EXPECT_EQ(names.size(), 180U);
  EXPECT_EQ(parallel.size(), 15U);
}

TEST(Configurations, DegreesDivideTheHeadsOfTheModelThatIsServed) {
  const auto falcon = find_known_model("falcon-7b", true);
  ASSERT_TRUE(falcon.ok());
  for (const Configuration& one : iserve_configurations(falcon->spec, 8)) {
    EXPECT_EQ(one.tensor, 1);  // one KV head
  }
  ModelSpec small = llama_70b();
  small.layers = 3;
  for (const Configuration& one : iserve_configurations(small, 8)) {
    EXPECT_LE(one.stages, 3);
  }
}

TEST(Configurations, MethodsDifferForFewBitsOnly) {
  const std::vector<Configuration> all = configurations_of(
      llama_70b(), 1, std::vector{Precision::kBf16, Precision::kW8, Precision::kW4});
  const auto count = [&](Precision weights) {
    return std::count_if(all.begin(), all.end(),
                         [&](const Configuration& one) { return one.weights == weights; });
  };
  EXPECT_EQ(count(Precision::kBf16), 6);  // KV bf16 and int8; dense, 25 % and 2:4
  EXPECT_EQ(count(Precision::kW8), 4);
  EXPECT_EQ(count(Precision::kW4), 12);
}

TEST(Configurations, ACheckpointIsLoadedAsItIsPruned) {
  ModelSpec spec = llama_70b();
  const auto loaded = [&] {
    std::set<std::string> names;
    for (const Configuration& one : configurations_of(
             spec, 1, std::vector{Precision::kBf16, Precision::kW8, Precision::kW4})) {
      if (one.kv == KvPrecision::kBf16 && loads_as(spec, one)) {
        names.insert(weights_name(one));
      }
    }
    return names;
  };
  EXPECT_EQ(loaded(), (std::set<std::string>{"bf16", "w8", "w4"}));
  spec.stored.precision = Precision::kS24;
  EXPECT_EQ(loaded(), (std::set<std::string>{"bf16 2:4", "w8", "w4"}));
}

// Returns the best candidate by a search that knows nothing of the ranking's order: the least of
// what the intent minimises among those that keep its bound and that fit.
std::optional<double> least(const std::vector<EstimatedConfiguration>& candidates,
                            const std::vector<Score>& scores, const Intent& intent,
                            const std::vector<DeviceState>& devices, int layers) {
  std::optional<double> best;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Score& score = scores[i];
    if ((intent.latency_slo_ms && score.latency_ms > *intent.latency_slo_ms) ||
        (intent.cost_slo && score.cost > *intent.cost_slo)) {
      continue;
    }
    if (!fits_devices(candidates[i].configuration, devices, candidates[i].memory, layers)) {
      continue;
    }
    const double value = intent.objective == Objective::kLatency ? score.latency_ms
                         : intent.objective == Objective::kCost  ? score.cost
                         : intent.objective == Objective::kMemory
                             ? static_cast<double>(candidates[i].total_bytes)
                             : score.device_seconds;
    best = best ? std::min(*best, value) : value;
  }
  return best;
}

double value_of(const Deployment& found, const Intent& intent) {
  const Score& score = found.scores[found.chosen];
  switch (intent.objective) {
    case Objective::kLatency:
      return score.latency_ms;
    case Objective::kCost:
      return score.cost;
    case Objective::kMemory:
      return static_cast<double>(found.candidates[found.chosen].total_bytes);
    case Objective::kDeviceHours:
      return score.device_seconds;
  }
  return 0;
}

TEST(Deployment, ChoosesWhatASearchThroughAllConfigurationsChooses) {
  std::mt19937 random(3);
  const auto draw = [&](double least_value, double most) {
    return std::uniform_real_distribution<double>(least_value, most)(random);
  };
  DeploymentWish wish{.spec = llama_70b()};
  const std::vector<EstimatedConfiguration> candidates = on_a6000(wish.spec, wish.load);
  int chosen = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<DeviceState> devices;
    for (int device = 0; device < 8; ++device) {
      devices.push_back(
          {.free_bytes = static_cast<std::int64_t>(draw(0, 48) * kGiB), .load = draw(0, 1)});
    }
    wish.intent = Intent{.objective = static_cast<Objective>(trial % 4)};
    if (trial % 3 == 0) {
      wish.intent = Intent{.objective = Objective::kCost, .latency_slo_ms = draw(1000, 20000)};
    } else if (trial % 3 == 1) {
      wish.intent = Intent{.objective = Objective::kLatency, .cost_slo = draw(1e-4, 5e-2)};
    }
    wish.pricing = {.formula = static_cast<CostFormula>(trial % 3), .device_bytes = 48 * kGiB};
    std::vector<Score> scores;
    for (const EstimatedConfiguration& candidate : candidates) {
      scores.push_back(score_of(candidate, wish.load.output_tokens, wish.pricing));
    }
    const auto expected = least(candidates, scores, wish.intent, devices, wish.spec.layers);
    const auto found = deploy(wish, candidates, devices);
    ASSERT_EQ(found.ok(), expected.has_value()) << trial;
    if (found.ok()) {
      ++chosen;
      ASSERT_DOUBLE_EQ(value_of(*found, wish.intent), *expected) << trial;
    }
  }
  EXPECT_GT(chosen, 300);
  EXPECT_LT(chosen, 1000);
}

TEST(Deployment, WhatDoesNotFitNamesTheNearestConfiguration) {
  DeploymentWish wish{.spec = llama_70b()};
  wish.pricing.device_bytes = 48 * kGiB;
  const std::vector<DeviceState> devices(2, {.free_bytes = 4 * kGiB});
  const auto found = deploy(wish,
                            estimate(wish.spec, wish.load, iserve_configurations(wish.spec, 2),
                                     [](const Configuration&) { return ConfigurationSteps{}; }),
                            devices);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ErrorCode::kExhausted);
  EXPECT_NE(found.error().message.find("w4"), std::string::npos) << found.error().message;
  EXPECT_NE(found.error().message.find("more on each of the 2 devices"), std::string::npos);
}

// A search through pairs of devices would take minutes.
TEST(Deployment, TheMostDevicesOfAPlanArePlaced) {
  DeploymentWish wish{.spec = llama_70b()};
  wish.pricing.device_bytes = 48 * kGiB;
  const auto candidates = estimate(wish.spec, wish.load, iserve_configurations(wish.spec, 1024),
                                   [](const Configuration&) { return ConfigurationSteps{}; });
  std::vector<DeviceState> devices(1024, {.free_bytes = 4 * kGiB});
  const auto found = deploy(wish, candidates, devices);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(std::ssize(found->placement.devices),
            candidates[found->chosen].configuration.devices());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    devices[i].free_bytes = static_cast<std::int64_t>(i);
  }
  const auto small = deploy(wish, candidates, devices);
  ASSERT_FALSE(small.ok());
  EXPECT_NE(small.error().message.find("more on each of the "), std::string::npos)
      << small.error().message;
}

TEST(Deployment, TheNextChoiceIsTheNextOneThatFits) {
  const ModelSpec spec = llama_70b();
  DeploymentWish wish{.spec = spec, .load = {}, .intent = *parse_intent("min-latency")};
  wish.pricing.device_bytes = 48 * kGiB;
  const std::vector<DeviceState> devices(8, {.free_bytes = 24 * kGiB});
  auto found = deploy(wish, on_a6000(spec, wish.load), devices);
  ASSERT_TRUE(found.ok());
  std::vector<std::size_t> chosen;
  for (std::optional<Deployment> next = *found; next;
       next = next_deployment(wish, *std::move(next), devices)) {
    chosen.push_back(next->chosen);
  }
  std::vector<std::size_t> fitting;
  for (const std::size_t candidate : found->ranked) {
    const EstimatedConfiguration& of = found->candidates[candidate];
    if (fits_devices(of.configuration, devices, of.memory, spec.layers)) {
      fitting.push_back(candidate);
    }
  }
  EXPECT_EQ(chosen, fitting);
  EXPECT_LT(fitting.size(), found->ranked.size());
}

TEST(Deployment, ABudgetThatNothingMeetsNamesTheNearestMiss) {
  DeploymentWish wish{.spec = llama_70b()};
  wish.intent = {.objective = Objective::kCost, .latency_slo_ms = 1};
  const auto found = deploy(wish, on_a6000(wish.spec, wish.load),
                            std::vector<DeviceState>(8, {.free_bytes = 48 * kGiB}));
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message.find("no configuration keeps latency-slo=1ms: the nearest, TP"),
            std::string::npos)
      << found.error().message;
}

TEST(Deployment, TheBudgetThatANearestMissNamesIsKept) {
  DeploymentWish wish{.spec = llama_70b()};
  wish.pricing.device_bytes = 48 * kGiB;
  const std::vector<DeviceState> devices(8, {.free_bytes = 480 * kGiB});
  for (const auto& [intent, before, unit] :
       {std::tuple{"latency-slo=", "takes ", "ms"}, std::tuple{"cost-slo=", "a cost of ", ""}}) {
    for (int output_tokens = 1; output_tokens < 64; ++output_tokens) {
      wish.load.output_tokens = output_tokens;
      wish.intent = *parse_intent(fmt::format("{}1e-9{}", intent, unit));
      const auto missed = deploy(wish, on_a6000(wish.spec, wish.load), devices);
      ASSERT_FALSE(missed.ok());
      const std::string& message = missed.error().message;
      const std::string named = message.substr(message.find(before) + std::string(before).size());
      wish.intent = *parse_intent(intent + named.substr(0, named.find_first_of(" :")) + unit);
      const auto found = deploy(wish, on_a6000(wish.spec, wish.load), devices);
      EXPECT_TRUE(found.ok()) << message << "; " << found.error().message;
    }
  }
}

TEST(Deployment, AMissedBudgetAdvisesDevicesOnlyIfMoreOfThemMayHelp) {
  const auto advises = [](const Intent& intent, int most_devices) {
    std::vector<EstimatedConfiguration> candidates;
    std::vector<Score> scores;
    for (int devices = 1; devices <= most_devices; devices *= 2) {
      candidates.push_back({.configuration = {.tensor = devices}});
      scores.push_back({.latency_ms = devices < 8 ? 8.0 / devices : 2.0, .cost = 1.0 * devices});
    }
    const auto ranked = rank(candidates, scores, intent);
    EXPECT_FALSE(ranked.ok());
    return ranked.error().message.find("add devices") != std::string::npos;
  };
  EXPECT_TRUE(advises({.latency_slo_ms = 1}, 4));
  EXPECT_FALSE(advises({.latency_slo_ms = 1}, 8)) << "four of the eight are as fast";
  EXPECT_FALSE(advises({.cost_slo = 0.5}, 4)) << "more devices cost more";
}

// Figure 3 and section 3: more TP is faster and takes more memory in all; at batch 1 more PP costs
// next to no time; 4 bits are the smallest.
TEST(Deployment, EstimatesHaveTheShapesOfThePapersFigures) {
  const ModelSpec spec = llama_70b();
  const std::vector<EstimatedConfiguration> all = on_a6000(spec, {});
  const auto of = [&](int tensor, int stages, Precision weights) {
    for (const EstimatedConfiguration& one : all) {
      const Configuration& is = one.configuration;
      if (is.tensor == tensor && is.stages == stages && is.weights == weights &&
          is.method == WeightMethod::kNearest && is.kv == KvPrecision::kBf16 &&
          is.pruning == Pruning{}) {
        return one;
      }
    }
    return EstimatedConfiguration{};
  };
  EXPECT_GT(of(1, 1, Precision::kBf16).latency.tpot_us, of(4, 1, Precision::kBf16).latency.tpot_us);
  EXPECT_LT(of(1, 1, Precision::kBf16).total_bytes, of(8, 1, Precision::kBf16).total_bytes);
  EXPECT_LT(of(1, 1, Precision::kBf16).total_bytes, of(1, 8, Precision::kBf16).total_bytes);
  EXPECT_LT(of(1, 8, Precision::kBf16).latency.tpot_us,
            1.01 * of(1, 1, Precision::kBf16).latency.tpot_us);
  EXPECT_LT(of(1, 1, Precision::kW4).total_bytes, of(1, 1, Precision::kW8).total_bytes);
}

}  // namespace
}  // namespace protean
