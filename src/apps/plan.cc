#include <memory>
#include <string>

#include "apps/configuration_list.h"
#include "apps/make_plan.h"
#include "apps/options.h"
#include "apps/plan_report.h"
#include "base/log.h"
#include "cost/known_models.h"
#include "host/machine.h"
#include "measure/json_line.h"
#include "model/variant_file.h"
#include "replica/model_files.h"
#include "replica/model_place.h"
#include "terminal/output.h"

namespace protean {
namespace {

struct PlanCommand {
  ModelOptions model;
  std::string like;
  PlanOptions plan;
  int rows = 10;
  bool as_json = false;
  bool kept = false;  // show what was planned before, plan nothing
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
    const std::string name(known->name);
    return PlannedModel{.name = name, .identity = name, .spec = known->spec};
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
                      .path = command.model.model,
                      .checkpoint = files->checkpoint};
}

int run_plan(PlanCommand& command) {
  const auto model = planned_model(command);
  if (!model.ok()) {
    return exit_with(model.error());
  }
  if (command.kept) {
    const auto found =
        kept_configurations({model->identity, model->spec}, {}, command.plan.variant_cache);
    if (!found.ok()) {
      return exit_with(found.error());
    }
    print_text(json_line(*found));
    return 0;
  }
  const auto report = make_plan(command.plan, *model, this_machine());
  if (!report.ok()) {
    return exit_with(report.error());
  }
  if (const std::string& warning = report->devices.warning; !warning.empty()) {
    log::warning("{}", warning);
  }
  print_text(command.as_json ? json_line(plan_json(*report)) : plan_text(*report, command.rows));
  return 0;
}

void add_space_options(CLI::App& app, PlanCommand& command) {
  app.option_defaults()->group("Configurations and devices");
  app.add_option("--devices", command.plan.devices,
                 "A number of devices of this machine; or devices with a built-in profile, such as "
                 "8xA6000 (A100, H100, A40, A6000, H20); or a TOML file of [[device]]")
      ->type_name("N|NxNAME|FILE")
      ->capture_default_str();
  app.add_option("--space", command.plan.space,
                 "protean: what Protean serves; iserve: the 180 configurations of the paper")
      ->check(one_of({"protean", "iserve"}))
      ->capture_default_str();
  app.add_option("--weights", command.plan.weights,
                 "Precisions of weights to consider, such as bf16,w8 (not with --space iserve)")
      ->type_name("LIST")
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
  add_variant_cache_option(*app, command->plan.variant_cache);
  add_intent_options(*app, command->plan.intent);
  add_space_options(*app, *command);
  app->option_defaults()->group("Output");
  app->add_option("--rows", command->rows, "Configurations to show")
      ->check(whole_number(1, 100000))
      ->capture_default_str();
  app->add_flag("--json", command->as_json, "Print one JSON object with every configuration");
  app->add_flag("--kept", command->kept,
                "Plan nothing: print one JSON object with the estimates that earlier plans of the "
                "model kept, for each load and devices");
  app->footer(
      "Example: protean plan MODEL --devices 2 --intent latency-slo=2s\n"
      "         protean plan --like llama-2-70b --devices 8xA6000 --space iserve --json");
  app->callback([command, &exit_code] { exit_code = run_plan(*command); });
}

}  // namespace protean
