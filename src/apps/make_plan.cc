#include "apps/make_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "apps/measured_quality.h"
#include "apps/version.h"
#include "base/log.h"
#include "control/configurations.h"
#include "control/deployment.h"
#include "cost/pruned_spec.h"
#include "model/profile_database.h"
#include "replica/step_costs.h"

namespace protean {
namespace {

constexpr int kBlockTokens = 16;
constexpr double kPatienceOfProfilesS = 300;  // nothing waits for them but other changes
constexpr std::array kPlannedKvs = {KvPrecision::kBf16, KvPrecision::kInt8};

Result<DeploymentWish> wish_of(const IntentOptions& wanted, const ModelSpec& spec,
                               const PlannedDevices& devices) {
  const auto intent = parse_intent(wanted.intent);
  const auto formula = parse_cost_formula(wanted.formula);
  const auto policy = parse_placement_policy(wanted.placement);
  for (const Error* error :
       {intent.ok() ? nullptr : &intent.error(), formula.ok() ? nullptr : &formula.error(),
        policy.ok() ? nullptr : &policy.error()}) {
    if (error != nullptr) {
      return *error;
    }
  }
  if (wanted.load.context() > spec.max_context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--prompt-tokens {} and --output-tokens {}: the model has a context of {} "
                      "tokens: use fewer",
                      wanted.load.prompt_tokens, wanted.load.output_tokens, spec.max_context);
  }
  double price = 0;
  double bytes = 0;
  for (const PlannedDevice& device : devices.devices) {
    price += device.price_per_hour * wanted.price;
    bytes += static_cast<double>(device.memory_bytes);
  }
  const auto count = static_cast<double>(devices.devices.size());
  return DeploymentWish{.spec = spec,
                        .load = wanted.load,
                        .intent = *intent,
                        .pricing = {.formula = *formula,
                                    .device_hour = price / count,
                                    .device_bytes = static_cast<std::int64_t>(bytes / count)},
                        .placement = {.policy = *policy, .theta = wanted.theta}};
}

// Returns the precisions of --weights; those that devices can be estimated for if it is "auto".
Result<std::vector<Precision>> wanted_precisions(const PlanOptions& options, bool profiles) {
  std::istringstream names(options.weights != "auto" ? options.weights
                           : profiles                ? "bf16,w8,w4"
                                                     : "bf16,w8,w8a8,w4,w4a8");
  std::vector<Precision> precisions;
  for (std::string name; std::getline(names, name, ',');) {
    const auto precision = parse_precision(name);
    if (!precision.ok()) {
      return make_error(precision.error().code, "--weights: {}", precision.error().message);
    }
    if (profiles && precision->integer_activations()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--weights {}: built-in profiles know no {}-bit activations: use bf16, w8, "
                        "w4 or w3",
                        name, precision->activation_bits);
    }
    precisions.push_back(*precision);
  }
  if (precisions.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--weights is empty: name precisions such as bf16,w8,w4");
  }
  std::sort(precisions.begin(), precisions.end());
  precisions.erase(std::unique(precisions.begin(), precisions.end()), precisions.end());
  return precisions;
}

ConfigurationSteps steps_on(const DeviceProfile& device, const ModelSpec& spec,
                            const Configuration& configuration) {
  return {
      .cost = roofline_cost(device, pruned_spec(spec, configuration.pruning), configuration.tensor,
                            {.weights = configuration.stored(), .kv = configuration.kv}),
      .send = device.send};
}

// Returns the least loaded of the devices that work and have as many threads as the first of them.
const PlannedDevice& device_to_profile_on(const std::vector<PlannedDevice>& devices) {
  const PlannedDevice* least = &*std::find_if(
      devices.begin(), devices.end(), [](const PlannedDevice& device) { return !device.lost; });
  for (const PlannedDevice& device : devices) {
    if (!device.lost && device.cpus.threads == least->cpus.threads && device.load < least->load) {
      least = &device;
    }
  }
  return *least;
}

// Returns two devices that may share layers: the one to profile on, and one that works and has as
// many threads. Nothing if there is no such other one.
std::vector<CpuShare> devices_to_share(const std::vector<PlannedDevice>& devices) {
  const PlannedDevice& one = device_to_profile_on(devices);
  for (const PlannedDevice& other : devices) {
    if (&other != &one && !other.lost && other.cpus.threads == one.cpus.threads) {
      return {one.cpus, other.cpus};
    }
  }
  return {};
}

// Returns the fingerprints that estimates on this machine rest on: one for each precision of the KV
// cache.
Result<std::vector<FingerprintOptions>> fingerprints_here(
    const PlanOptions& options, const PlannedModel& model,
    const std::vector<PlannedDevice>& devices, const std::vector<Precision>& precisions) {
  if (model.checkpoint == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--like {} has no weights to run here: name devices with a built-in profile, "
                      "such as --devices 8xA6000, or give MODEL",
                      model.name);
  }
  std::vector<Precision> stored = precisions;
  if (std::find(stored.begin(), stored.end(), Precision::kBf16) != stored.end()) {
    stored.push_back(Precision::kS24);
    std::sort(stored.begin(), stored.end());
  }
  std::vector<FingerprintOptions> fingerprints;
  for (const KvPrecision kv : kPlannedKvs) {
    fingerprints.push_back({.layers = stored,
                            .kv = {.precision = kv, .block_tokens = kBlockTokens},
                            .cpus = device_to_profile_on(devices).cpus,
                            .sharing = devices_to_share(devices),
                            .harvest = options.harvest});
  }
  return fingerprints;
}

StepCostSource source_of(const PlanOptions& options, const PlannedModel& model) {
  return {.model = model.path, .directory = options.variant_cache, .version = kVersion};
}

// Returns what steps cost on one of the devices of this machine, for both precisions of the KV
// cache: kept costs, or those of a fingerprint that is made now.
Result<std::map<KvPrecision, StepCost>> costs_here(const PlanOptions& options,
                                                   const PlannedModel& model,
                                                   const std::vector<PlannedDevice>& devices,
                                                   const std::vector<Precision>& precisions) {
  const auto fingerprints = fingerprints_here(options, model, devices, precisions);
  if (!fingerprints.ok()) {
    return fingerprints.error();
  }
  std::map<KvPrecision, StepCost> costs;
  for (const FingerprintOptions& wanted : *fingerprints) {
    const auto cost = known_step_cost(source_of(options, model), *model.checkpoint, wanted);
    if (!cost.ok()) {
      return make_error(cost.error().code, "its steps cannot be timed: {}", cost.error().message);
    }
    costs.emplace(wanted.kv.precision, *cost);
  }
  return costs;
}

std::string rests_on_here(const Configuration& configuration, const StepCost& cost) {
  std::string text = "a fingerprint on this machine";
  const auto& sums = cost.of(configuration.stored()).sums;
  if (configuration.tensor > 1 && !sums) {
    text += ", sums among devices not measured";
  } else if (configuration.tensor > 2) {
    text += ", sums measured on two devices";
  }
  text += configuration.pruning.kind == PruningKind::kStructured
              ? ", time in layers scaled by weights"
              : "";
  return text;
}

// Estimates each configuration for the slowest kind of device that the plan may use.
std::vector<EstimatedConfiguration> estimate_on_profiles(
    const DeploymentWish& wish, const std::vector<Configuration>& configurations,
    const PlannedDevices& devices) {
  std::map<std::string_view, DeviceProfile> kinds;
  for (const PlannedDevice& device : devices.devices) {
    kinds.emplace(device.profile->name, *device.profile);
  }
  std::vector<EstimatedConfiguration> slowest;
  for (const auto& kind : kinds) {
    const DeviceProfile& profile = kind.second;
    const std::vector<EstimatedConfiguration> on =
        estimate(wish.spec, wish.load, configurations,
                 [&](const Configuration& one) { return steps_on(profile, wish.spec, one); });
    slowest.resize(on.size(), {});
    for (std::size_t i = 0; i < on.size(); ++i) {
      const Latency before = slowest[i].latency;
      slowest[i] = on[i];
      slowest[i].latency.ttft_us = std::max(before.ttft_us, on[i].latency.ttft_us);
      slowest[i].latency.tpot_us = std::max(before.tpot_us, on[i].latency.tpot_us);
    }
  }
  return slowest;
}

std::string sources_of(const PlannedDevices& devices) {
  std::set<std::string> sources;
  for (const PlannedDevice& device : devices.devices) {
    sources.insert(fmt::format("{}: {}", device.profile->name, device.profile->source));
  }
  return fmt::format("{}", fmt::join(sources, "; "));
}

// Estimates every configuration and says what each estimate rests on.
Result<std::vector<EstimatedConfiguration>> candidates_of(const PlanOptions& options,
                                                          const PlannedModel& model,
                                                          PlanReport& report) {
  const std::vector<PlannedDevice>& devices = report.devices.devices;
  const bool profiles = devices.front().profile.has_value();
  auto precisions = wanted_precisions(options, profiles);
  if (!precisions.ok()) {
    return precisions.error();
  }
  const auto count = static_cast<int>(std::count_if(
      devices.begin(), devices.end(), [](const PlannedDevice& device) { return !device.lost; }));
  const bool iserve = options.space == "iserve";
  if (iserve && options.weights != "auto") {
    return make_error(ErrorCode::kInvalidArgument,
                      "--weights {}: --space iserve has the precisions of the paper: remove one of "
                      "the two",
                      options.weights);
  }
  if (iserve) {
    precisions = std::vector{Precision::kBf16, Precision::kW8, Precision::kW4};
  }
  std::vector<Configuration> configurations =
      iserve ? iserve_configurations(model.spec, count)
             : configurations_of(model.spec, count, *precisions);
  if (options.as_it_is) {
    std::erase_if(configurations,
                  [&](const Configuration& one) { return !loads_as(model.spec, one); });
  }
  if (profiles) {
    report.rests_on.assign(configurations.size(), sources_of(report.devices));
    return estimate_on_profiles(report.wish, configurations, report.devices);
  }
  const auto costs = costs_here(options, model, devices, *precisions);
  if (!costs.ok()) {
    return costs.error();
  }
  for (const Configuration& one : configurations) {
    report.rests_on.push_back(rests_on_here(one, costs->at(one.kv)));
  }
  report.estimate_for = [costs = *costs, configurations,
                         spec = model.spec](const PlannedLoad& load) {
    return estimate(spec, load, configurations, [&](const Configuration& one) {
      return ConfigurationSteps{.cost = divided_cost(costs.at(one.kv), spec, one, kAssumedTransfer),
                                .send = kAssumedTransfer,
                                .divides_prompts = true};
    });
  };
  return report.estimate_for(report.wish.load);
}

// Reads the devices, with the loads that are known. Fails if none is left.
Result<PlannedDevices> devices_of(const PlanOptions& options, const PlannedModel& model,
                                  const Machine& machine) {
  auto devices = read_planned_devices(options.devices, options.cpus, model.spec, machine);
  if (!devices.ok()) {
    return devices;
  }
  std::vector<PlannedDevice>& all = devices->devices;
  for (std::size_t device = 0; device < std::min(options.loads.size(), all.size()); ++device) {
    all[device].load = options.loads[device];
  }
  for (const int device : options.lost) {
    if (device < std::ssize(all)) {
      all[static_cast<std::size_t>(device)].lost = true;
    }
  }
  if (std::all_of(all.begin(), all.end(), [](const PlannedDevice& one) { return one.lost; })) {
    return make_error(ErrorCode::kUnavailable,
                      "all devices ({}) have failed: start the server again", all.size());
  }
  return devices;
}

// Keeps all estimates in the configuration map. A map that cannot be kept is a warning.
void keep_map(const PlanOptions& options, const PlannedModel& model, const PlanReport& report) {
  std::vector<MappedConfiguration> rows;
  for (std::size_t i = 0; i < report.deployment.candidates.size(); ++i) {
    const EstimatedConfiguration& of = report.deployment.candidates[i];
    rows.push_back({.configuration = of.configuration,
                    .latency = of.latency,
                    .block_bytes = of.memory.block_bytes,
                    .total_bytes = of.total_bytes,
                    .rests_on = report.rests_on[i]});
  }
  const auto database = ProfileDatabase::open(profile_directory(source_of(options, model)));
  const Status saved =
      database.ok()
          ? (*database)->save({.model = model.identity,
                               .devices = fmt::format("{} x {}", report.devices.devices.size(),
                                                      report.devices.name),
                               .load = report.wish.load,
                               .version = kVersion},
                              rows)
          : Status(database.error());
  if (!saved.ok()) {
    log::warning("the configuration map is not kept: {}", saved.error().message);
  }
}

}  // namespace

Error plan_stopped() {
  return make_error(ErrorCode::kUnavailable, "the plan was stopped");
}

Result<PlanReport> make_plan(const PlanOptions& options, const PlannedModel& model,
                             const Machine& machine) {
  PlanReport report{
      .model = model.name, .space = options.space, .most_device_bytes = options.most_device_bytes};
  auto devices = devices_of(options, model, machine);
  if (!devices.ok()) {
    return devices.error();
  }
  report.devices = *std::move(devices);
  for (const PlannedDevice& device : report.devices.devices) {
    report.states.push_back(
        {.free_bytes =
             std::min(device.free_bytes, options.most_device_bytes.value_or(device.free_bytes)),
         .load = device.load,
         .lost = device.lost});
  }
  auto wish = wish_of(options.intent, model.spec, report.devices);
  if (!wish.ok()) {
    return wish.error();
  }
  report.wish = *std::move(wish);
  auto candidates = candidates_of(options, model, report);
  if (!candidates.ok()) {
    return candidates.error();
  }
  if (options.harvest.is_over()) {
    return plan_stopped();
  }
  auto deployment = deploy(report.wish, *std::move(candidates), report.states);
  if (!deployment.ok()) {
    return deployment.error();
  }
  report.deployment = *std::move(deployment);
  report.perplexity_ratios = measured_ratios({model.identity, model.spec},
                                             report.deployment.candidates, options.variant_cache);
  keep_map(options, model, report);
  return report;
}

Status profile_for_plans(const PlanOptions& options, const PlannedModel& model,
                         const Machine& machine,
                         const std::function<void(const ProfileProgress&)>& told) {
  const auto devices = devices_of(options, model, machine);
  if (!devices.ok()) {
    return devices.error();
  }
  const auto precisions = wanted_precisions(options, false);
  if (!precisions.ok()) {
    return precisions.error();
  }
  auto fingerprints = fingerprints_here(options, model, devices->devices, *precisions);
  if (!fingerprints.ok()) {
    return fingerprints.error();
  }
  ProfileProgress progress{.fingerprints = static_cast<int>(fingerprints->size())};
  for (FingerprintOptions& wanted : *fingerprints) {
    progress = {.fingerprint = progress.fingerprint + 1, .fingerprints = progress.fingerprints};
    told(progress);
    wanted.patience_s = kPatienceOfProfilesS;
    wanted.harvest.told = [&](const FingerprintProgress& now) {
      progress.steps = now.steps;
      progress.of_steps = now.of_steps;
      progress.discarded = now.discarded;
      told(progress);
    };
    const StepCostSource source = source_of(options, model);
    if (Status anew = forget_step_times(source, model.spec, wanted); !anew.ok()) {
      return anew;
    }
    std::string remark;
    const auto found = learn_step_cost(source, *model.checkpoint, wanted, &remark);
    if (!found.ok()) {
      return found.error();
    }
    if (!remark.empty()) {
      return make_error(ErrorCode::kUnavailable, "the fingerprint is not kept: {}", remark);
    }
  }
  return {};
}

}  // namespace protean
