#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/options.h"
#include "apps/plan_devices.h"
#include "apps/plan_report.h"
#include "apps/version.h"
#include "base/log.h"
#include "control/configurations.h"
#include "control/deployment.h"
#include "cost/known_models.h"
#include "cost/pruned_spec.h"
#include "host/machine.h"
#include "measure/json_line.h"
#include "model/profile_database.h"
#include "model/variant_file.h"
#include "replica/model_files.h"
#include "replica/model_place.h"
#include "replica/step_costs.h"
#include "terminal/output.h"

namespace protean {
namespace {

// Two devices of one machine meet twice in each layer. Not measured: the order of what a wake-up
// and a cache line take between two cores.
constexpr Transfer kSumsHere = {.us = 5, .bytes_per_us = 4000};

struct PlanCommand {
  ModelOptions model;
  std::string like;
  std::string devices = "1";
  std::string space = "protean";
  std::string intent = "min-cost";
  std::string formula = "memory-time";
  double price = 1;
  PlannedLoad load;
  std::string placement = "hybrid";
  double theta = PlacementOptions().theta;
  std::string weights = "auto";
  std::string variant_cache;
  int rows = 10;
  bool as_json = false;
};

// The model of a plan: its sizes, and if it is not a known model's sizes alone, its files.
struct PlannedModel {
  std::string name;
  std::string identity;  // in the configuration map
  ModelSpec spec;
  std::shared_ptr<Checkpoint> checkpoint;
};

Result<PlannedModel> planned_model(PlanCommand& command) {
  if (command.like.empty() == command.model.model.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "protean plan needs MODEL or --like NAME, and not both");
  }
  if (!command.like.empty()) {
    const auto known = find_known_model(command.like, true);
    if (!known.ok()) {
      return known.error();
    }
    return PlannedModel{.name = command.like, .identity = command.like, .spec = known->spec};
  }
  if (Status located = locate_model(command.model); !located.ok()) {
    return located.error();
  }
  auto files = open_model_files(command.model);
  if (!files.ok()) {
    return files.error();
  }
  const ModelSpec& spec = files->checkpoint->spec();
  const auto identity = identify_model(command.model.model, spec);
  if (!identity.ok()) {
    return identity.error();
  }
  return PlannedModel{.name = files->name,
                      .identity = identity->hex(),
                      .spec = spec,
                      .checkpoint = files->checkpoint};
}

Result<DeploymentWish> wish_of(const PlanCommand& command, const ModelSpec& spec,
                               const PlannedDevices& devices) {
  const auto intent = parse_intent(command.intent);
  const auto formula = parse_cost_formula(command.formula);
  const auto policy = parse_placement_policy(command.placement);
  for (const Error* error :
       {intent.ok() ? nullptr : &intent.error(), formula.ok() ? nullptr : &formula.error(),
        policy.ok() ? nullptr : &policy.error()}) {
    if (error != nullptr) {
      return *error;
    }
  }
  if (command.load.context() > spec.max_context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--prompt-tokens {} and --output-tokens {}: the model has a context of {} "
                      "tokens: use fewer",
                      command.load.prompt_tokens, command.load.output_tokens, spec.max_context);
  }
  double price = 0;
  double bytes = 0;
  for (const PlannedDevice& device : devices.devices) {
    price += device.price_per_hour * command.price;
    bytes += static_cast<double>(device.memory_bytes);
  }
  const auto count = static_cast<double>(devices.devices.size());
  return DeploymentWish{.spec = spec,
                        .load = command.load,
                        .intent = *intent,
                        .pricing = {.formula = *formula,
                                    .device_hour = price / count,
                                    .device_bytes = static_cast<std::int64_t>(bytes / count)},
                        .placement = {.policy = *policy, .theta = command.theta}};
}

// Returns the precisions of --weights; those that devices can be estimated for if it is "auto".
Result<std::vector<Precision>> wanted_precisions(const PlanCommand& command, bool profiles) {
  std::istringstream names(command.weights != "auto" ? command.weights
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
  const bool two_of_four = configuration.pruning.kind == PruningKind::kTwoOfFour;
  return {
      .cost = roofline_cost(
          device, pruned_spec(spec, configuration.pruning), configuration.tensor,
          {.weights = configuration.weights, .kv = configuration.kv, .two_of_four = two_of_four}),
      .send = device.send};
}

// Returns what steps cost on one of the devices of this machine, for both precisions of the KV
// cache: kept costs, or those of a fingerprint that is made now.
Result<std::map<KvPrecision, StepCost>> costs_here(const PlanCommand& command,
                                                   const PlannedModel& model,
                                                   const PlannedDevice& device,
                                                   const std::vector<Precision>& precisions) {
  if (model.checkpoint == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--like {} has no weights to run here: name devices with a built-in profile, "
                      "such as --devices 8xA6000, or give MODEL",
                      model.name);
  }
  std::map<KvPrecision, StepCost> costs;
  for (const KvPrecision kv : {KvPrecision::kBf16, KvPrecision::kInt8}) {
    const FingerprintOptions options{
        .layers = precisions,
        .kv = {.precision = kv, .block_tokens = command.model.block_size},
        .cpus = device.cpus,
        .max_model_len = std::min(model.spec.max_context, 4096)};
    const StepCost cost = known_step_cost(
        {.model = command.model.model, .directory = command.variant_cache, .version = kVersion},
        *model.checkpoint, options);
    if (!cost.of(precisions.front()).is_known()) {
      return make_error(ErrorCode::kUnavailable,
                        "steps of {} cannot be timed on this machine, see the warning above",
                        model.name);
    }
    costs.emplace(kv, cost);
  }
  return costs;
}

std::string rests_on_here(const Configuration& configuration) {
  std::string text = "a fingerprint on this machine";
  text += configuration.tensor > 1 ? ", sums among devices not measured" : "";
  text +=
      configuration.pruning.kind != PruningKind::kNone ? ", time in layers scaled by weights" : "";
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
  for (const auto& [name, profile] : kinds) {
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
Result<std::vector<EstimatedConfiguration>> candidates_of(const PlanCommand& command,
                                                          const PlannedModel& model,
                                                          PlanReport& report) {
  const std::vector<PlannedDevice>& devices = report.devices.devices;
  const bool profiles = devices.front().profile.has_value();
  auto precisions = wanted_precisions(command, profiles);
  if (!precisions.ok()) {
    return precisions.error();
  }
  const int count = static_cast<int>(devices.size());
  const bool iserve = command.space == "iserve";
  if (iserve) {
    precisions = std::vector{Precision::kBf16, Precision::kW8, Precision::kW4};
  }
  const std::vector<Configuration> configurations =
      iserve ? iserve_configurations(model.spec, count)
             : configurations_of(model.spec, count, *precisions);
  if (profiles) {
    report.rests_on.assign(configurations.size(), sources_of(report.devices));
    return estimate_on_profiles(report.wish, configurations, report.devices);
  }
  const auto costs = costs_here(command, model, devices.front(), *precisions);
  if (!costs.ok()) {
    return costs.error();
  }
  for (const Configuration& one : configurations) {
    report.rests_on.push_back(rests_on_here(one));
  }
  return estimate(model.spec, report.wish.load, configurations, [&](const Configuration& one) {
    return ConfigurationSteps{.cost = divided_cost(costs->at(one.kv), model.spec, one, kSumsHere),
                              .send = kSumsHere};
  });
}

// Keeps all estimates in the configuration map. A map that cannot be kept is a warning.
void keep_map(const PlanCommand& command, const PlannedModel& model, const PlanReport& report) {
  std::vector<MappedConfiguration> rows;
  for (std::size_t i = 0; i < report.deployment.candidates.size(); ++i) {
    const EstimatedConfiguration& of = report.deployment.candidates[i];
    rows.push_back({.configuration = of.configuration,
                    .latency = of.latency,
                    .block_bytes = of.memory.block_bytes,
                    .total_bytes = of.total_bytes,
                    .rests_on = report.rests_on[i]});
  }
  const auto database = ProfileDatabase::open(
      profile_directory({.directory = command.variant_cache, .version = kVersion}));
  const Status saved =
      database.ok()
          ? (*database)->save({.model = model.identity,
                               .devices = fmt::format("{} x {}", report.devices.devices.size(),
                                                      report.devices.name),
                               .load = report.wish.load},
                              rows)
          : Status(database.error());
  if (!saved.ok()) {
    log::warning("the configuration map is not kept: {}", saved.error().message);
  }
}

int run_plan(PlanCommand& command) {
  const auto model = planned_model(command);
  if (!model.ok()) {
    return exit_with(model.error());
  }
  PlanReport report{.model = model->name, .space = command.space};
  auto devices = read_planned_devices(command.devices, model->spec, this_machine());
  if (!devices.ok()) {
    return exit_with(devices.error());
  }
  report.devices = *std::move(devices);
  for (const PlannedDevice& device : report.devices.devices) {
    report.states.push_back({.free_bytes = device.free_bytes, .load = device.load});
  }
  auto wish = wish_of(command, model->spec, report.devices);
  if (!wish.ok()) {
    return exit_with(wish.error());
  }
  report.wish = *std::move(wish);
  auto candidates = candidates_of(command, *model, report);
  if (!candidates.ok()) {
    return exit_with(candidates.error());
  }
  auto deployment = deploy(report.wish, *std::move(candidates), report.states);
  if (!deployment.ok()) {
    return exit_with(deployment.error());
  }
  report.deployment = *std::move(deployment);
  keep_map(command, *model, report);
  print_text(command.as_json ? json_line(plan_json(report)) : plan_text(report, command.rows));
  return 0;
}

void add_intent_options(CLI::App& app, PlanCommand& command) {
  app.option_defaults()->group("Intent");
  app.add_option("--intent", command.intent,
                 "min-latency, min-cost, min-memory, min-device-hours, latency-slo=500ms (the "
                 "cheapest that keeps it) or cost-slo=0.02 (the fastest within it)")
      ->type_name("INTENT")
      ->capture_default_str();
  app.add_option("--cost", command.formula,
                 "What costs, summed over devices: memory-time (price of a device-hour * share of "
                 "its memory * time of an answer), memory (price * share, for an hour) or "
                 "device-time (price * time of an answer)")
      ->type_name("FORMULA")
      ->capture_default_str();
  app.add_option("--price", command.price,
                 "Price of a device-hour; a file of --devices may give more or less")
      ->check(number_range(0, 1e9))
      ->capture_default_str();
  app.add_option("--batch", command.load.batch, "Requests at once")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  app.add_option("--prompt-tokens", command.load.prompt_tokens, "Tokens of each prompt")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  app.add_option("--output-tokens", command.load.output_tokens, "Tokens of each answer")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
}

void add_space_options(CLI::App& app, PlanCommand& command) {
  app.option_defaults()->group("Configurations and devices");
  app.add_option("--devices", command.devices,
                 "A number of devices of this machine; or devices with a built-in profile, such as "
                 "8xA6000 (A100, H100, A40, A6000, H20); or a TOML file of [[device]]")
      ->type_name("N|NxNAME|FILE")
      ->capture_default_str();
  app.add_option("--space", command.space,
                 "protean: what Protean serves; iserve: the 180 configurations of the paper")
      ->check(one_of({"protean", "iserve"}))
      ->capture_default_str();
  app.add_option("--weights", command.weights,
                 "Precisions of weights to consider, such as bf16,w8 (not with --space iserve)")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--placement", command.placement,
                 "Which devices with room to take: least-loaded, packing, or hybrid (the most "
                 "loaded ones below --theta, otherwise the least loaded)")
      ->type_name("POLICY")
      ->capture_default_str();
  app.add_option("--theta", command.theta, "Load above which hybrid packs nothing on a device")
      ->check(number_range(0, 1))
      ->capture_default_str();
}

}  // namespace

void add_plan(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "plan",
      "Choose a deployment for an intent without serving: estimate every configuration, rank them, "
      "and place the first one that fits");
  auto command = std::make_shared<PlanCommand>();
  app->add_option("MODEL", command->model.model, "Folder, .gguf file, or ORG/NAME on a hub")
      ->type_name("MODEL");
  app->option_defaults()->group("Model");
  app->add_option("--like", command->like, "A published model's sizes, without its weights")
      ->type_name("NAME");
  add_variant_cache_option(*app, command->variant_cache);
  add_intent_options(*app, *command);
  add_space_options(*app, *command);
  app->option_defaults()->group("Output");
  app->add_option("--rows", command->rows, "Configurations to show")
      ->check(whole_number(1, 100000))
      ->capture_default_str();
  app->add_flag("--json", command->as_json, "Print one JSON object with every configuration");
  app->footer(
      "Example: protean plan MODEL --devices 2 --intent latency-slo=2s\n"
      "         protean plan --like llama-2-70b --devices 8xA6000 --space iserve --json");
  app->callback([command, &exit_code] { exit_code = run_plan(*command); });
}

}  // namespace protean
