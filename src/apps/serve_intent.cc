#include "apps/serve_intent.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <memory>
#include <optional>
#include <string_view>

#include "apps/make_plan.h"
#include "base/log.h"
#include "base/units.h"
#include "host/cpu_share.h"
#include "host/topology.h"
#include "model/variant_file.h"

namespace protean {
namespace {

// Returns the flag that says what the intent has to choose; empty if there is none.
std::string_view flag_in_the_way(const ModelOptions& options) {
  return options.dtype != "auto"            ? "--dtype"
         : options.kv_cache_dtype != "auto" ? "--kv-cache-dtype"
         : options.group.tensor > 0         ? "--tensor-parallel-size"
         : options.group.pipeline > 0       ? "--pipeline-parallel-size"
         : !options.group.stages.empty()    ? "--stages"
         : options.group.replicas > 1       ? "--data-parallel-size"
                                            : "";
}

// Returns true unless --devices is a file.
bool counts_devices(const std::string& devices) {
  return devices.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

PlannedLoad within(PlannedLoad load, int max_context) {
  if (const int context = load.context(); context > max_context) {
    const double share = static_cast<double>(max_context) / context;
    load.output_tokens = std::max(1, static_cast<int>(load.output_tokens * share));
    load.prompt_tokens = std::max(1, max_context - load.output_tokens);
  }
  return load;
}

namespace {

// What is planned, and the options of its plan but for the intent.
struct Planning {
  PlannedModel model;
  PlanOptions options;
};

Result<Planning> planning_of(const IntentScene& scene, const ModelFiles& files,
                             const ModelOptions& options) {
  const ModelSpec& spec = files.checkpoint->spec();
  const auto identity = identify_model(options.model, spec);
  if (!identity.ok()) {
    return identity.error();
  }
  return Planning{
      .model = {.name = files.name,
                .identity = identity->hex(),
                .spec = spec,
                .path = options.model,
                .checkpoint = files.checkpoint},
      .options = {.devices = options.group.devices == "auto" ? "1" : options.group.devices,
                  .cpus = options.compute.cpus,
                  .loads = scene.device_loads,
                  .lost = scene.lost_devices,
                  .variant_cache = scene.variant_cache,
                  .as_it_is = true,
                  .harvest = scene.harvest}};
}

}  // namespace

Result<std::shared_ptr<const PlanReport>> choose_for_intent(const IntentScene& scene,
                                                            const ModelFiles& files,
                                                            const ModelOptions& options) {
  const std::string& intent = scene.intent.intent;
  if (const std::string_view flag = flag_in_the_way(options); !flag.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--intent {} chooses precisions and parallelism: remove {}", intent, flag);
  }
  if (const Status fits = check_threads(scene.machine, options.compute.threads); !fits.ok()) {
    return fits.error();
  }
  auto planning = planning_of(scene, files, options);
  if (!planning.ok()) {
    return planning.error();
  }
  PlanOptions& wanted = planning->options;
  if (!counts_devices(wanted.devices)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--intent {} with --devices {}: give the number of devices", intent,
                      wanted.devices);
  }
  wanted.intent = scene.intent;
  wanted.intent.load = within(scene.intent.load, planning->model.spec.max_context);
  if (options.device_memory != "auto") {
    const auto bytes = parse_bytes(options.device_memory);
    if (!bytes.ok()) {
      return make_error(bytes.error().code, "--device-memory: {}", bytes.error().message);
    }
    wanted.most_device_bytes = *bytes;
  }
  auto report = make_plan(wanted, planning->model, scene.machine);
  if (report.ok()) {
    return std::make_shared<const PlanReport>(*std::move(report));
  }
  if (report.error().code == ErrorCode::kExhausted && wanted.most_device_bytes) {
    return make_error(ErrorCode::kExhausted, "{}, or raise --device-memory {}",
                      report.error().message, options.device_memory);
  }
  return report.error();
}

Status profile_for_intents(const IntentScene& scene, const ModelFiles& files,
                           const ModelOptions& options,
                           const std::function<void(const ProfileProgress&)>& told) {
  const auto planning = planning_of(scene, files, options);
  return planning.ok() ? profile_for_plans(planning->options, planning->model, scene.machine, told)
                       : Status(planning.error());
}

std::shared_ptr<const PlanReport> next_choice(const PlanReport& report) {
  auto next = next_deployment(report.wish, report.deployment, report.states);
  if (!next) {
    return nullptr;
  }
  PlanReport changed = report;
  changed.deployment = *std::move(next);
  return std::make_shared<const PlanReport>(std::move(changed));
}

IntentPlan apply_plan(const PlanReport& report, bool bound, ModelOptions& options) {
  const Deployment& found = report.deployment;
  const Configuration& chosen = found.candidates[found.chosen].configuration;
  const std::vector<PlannedDevice>& devices = report.devices.devices;
  log::info("intent {}: {} of {} devices, {}, {:.1f} ms for an answer of {} tokens",
            to_string(report.wish.intent), chosen.devices(), devices.size(), to_string(chosen),
            found.scores[found.chosen].latency_ms, report.wish.load.output_tokens);
  options.dtype = to_string(chosen.stored());
  options.kv_cache_dtype = to_string(chosen.kv);
  options.group.tensor = chosen.tensor;
  options.group.pipeline = chosen.stages;
  options.group.stages = fmt::format("{}", fmt::join(found.placement.stage_layers, ","));
  options.group.devices = fmt::format("{}", chosen.devices());
  if (options.compute.threads == 0) {  // the devices that are not taken keep their CPUs
    const int first = found.placement.devices.front();
    options.compute.threads = devices[static_cast<std::size_t>(first)].cpus.threads;
  }
  if (bound) {
    std::vector<int> cpus;
    for (const int device : found.placement.devices) {
      const std::vector<int>& some = devices[static_cast<std::size_t>(device)].cpus.where.cpus;
      cpus.insert(cpus.end(), some.begin(), some.end());
    }
    options.compute.cpus = format_cpu_list(std::move(cpus));
  }
  return IntentPlan{to_string(chosen),
                    std::make_shared<const std::string>(boost::json::serialize(plan_json(report)))};
}

std::string why_no_intent(const ModelOptions& options, const Sizing& sizing) {
  const std::string& devices = options.group.devices;
  return sizing.replicas() > 1
             ? fmt::format(
                   "an intent chooses for one replica, and --data-parallel-size is {}: "
                   "deploy the model with 1",
                   sizing.replicas())
         : devices != "auto" && !counts_devices(devices)
             ? fmt::format(
                   "an intent chooses among a number of devices, and --devices is {}: "
                   "deploy the model with their number",
                   devices)
             : "";
}

Status forget_choice(ModelOptions& options, const Sizing& sizing) {
  if (const std::string why = why_no_intent(options, sizing); !why.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}", why);
  }
  if (options.group.devices == "auto") {
    options.group.devices = fmt::format("{}", sizing.devices.size());
  }
  options.dtype = "auto";
  options.kv_cache_dtype = "auto";
  options.group.tensor = 0;
  options.group.pipeline = 0;
  options.group.stages.clear();
  return {};
}

}  // namespace protean
