#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <utility>

#include "apps/options.h"
#include "measure/json_line.h"
#include "measure/layer_profile.h"
#include "measure/step_profile.h"
#include "terminal/output.h"

namespace protean {
namespace {

namespace json = boost::json;

struct ProfileCommand {
  LayerProfileOptions layers;
  StepProfileOptions steps;
  bool times_steps = false;
  bool shows_steps = false;
  bool as_json = false;
};

int show_steps(const ProfileCommand& command) {
  const auto kept = kept_steps(command.steps);
  if (!kept.ok()) {
    return exit_with(kept.error());
  }
  print_text(command.as_json ? json_line({{"steps", kept->json}}) : kept->text);
  return 0;
}

int run_profile(ProfileCommand& command) {
  command.steps.model = command.layers.model;
  command.steps.variant_cache = command.layers.cache;
  command.steps.compute = command.layers.compute;
  if (command.shows_steps) {
    return show_steps(command);
  }
  if (command.layers.calibrate.empty() && !command.times_steps) {
    return exit_with({ErrorCode::kInvalidArgument,
                      "there is nothing to learn: give --calibrate FILE to rank layers, --steps to "
                      "time steps, or both"});
  }
  json::object object;
  if (!command.layers.calibrate.empty()) {
    const auto report = profile_layers(command.layers);
    if (!report.ok()) {
      return exit_with(report.error());
    }
    object = to_json(*report);
    if (!command.as_json) {
      print_text(to_text(*report));
    }
  }
  if (command.times_steps) {
    const auto steps = profile_steps(command.steps);
    if (!steps.ok()) {
      return exit_with(steps.error());
    }
    object["steps"] = steps->json;
    if (!command.as_json) {
      print_text(steps->text);
    }
  }
  if (command.as_json) {
    print_text(json_line(std::move(object)));
  }
  return 0;
}

void add_step_options(CLI::App& app, ProfileCommand& command) {
  app.add_flag("--steps", command.times_steps,
               "time steps of the model on this machine and fit the cost model to them");
  app.add_flag("--show-steps", command.shows_steps,
               "print the cost model that was kept, and measure nothing");
  app.add_option("--step-precisions", command.steps.precisions, "of the layers in timed steps")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--longest-step", command.steps.longest,
                 "tokens of the longest prompt and context of a timed step")
      ->check(CLI::Range(128, 65536))
      ->capture_default_str();
  app.add_option("--step-repeat", command.steps.repeat, "times that each step is timed at least")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--cpu-time", command.steps.cpu_time,
               "time steps by the processor time used, for machines that have other work");
}

}  // namespace

void add_profile(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "profile", "learn what a model's layers lose at fewer bits, and what its steps take");
  auto command = std::make_shared<ProfileCommand>();
  app->add_option("model", command->layers.model, "Hugging Face directory or .gguf file")
      ->required();
  app->add_option("--calibrate", command->layers.calibrate,
                  "text like what the model will read. A .jsonl file holds a document a line, in "
                  "\"text\"");
  app->add_option("--precision", command->layers.precision,
                  "that layers go to: w8, w4, w3, w8a8, w8a7 or w4a8")
      ->capture_default_str();
  app->add_option("--weights", command->layers.weights,
                  "of a layer's transformation of its input, its own change at fewer bits, and "
                  "the change of the model's output")
      ->delimiter(',')
      ->expected(3)
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--metric", command->layers.metric, "of change: cosine or l2")
      ->check(CLI::IsMember({"cosine", "l2"}))
      ->capture_default_str();
  app->add_flag("--halves", command->layers.halves, "rank attention and MLP of each layer apart");
  app->add_flag("--table", command->layers.table,
                "also print perplexities by how many are lowered, for this order and others");
  app->add_option("--text", command->layers.text, "other text for the table");
  app->add_option("--samples", command->layers.windows.samples,
                  "windows of each text to measure with")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--sequence-length", command->layers.windows.length, "tokens of a window")
      ->check(CLI::Range(2, 32768))
      ->capture_default_str();
  add_variant_option(*app, command->layers.variants);
  app->add_option("--variant-cache", command->layers.cache,
                  "folder for packed weights and the order; default: ~/.cache/protean");
  add_compute_options(*app, command->layers.compute);
  add_step_options(*app, *command);
  app->add_flag("--json", command->as_json, "print one JSON object");
  app->footer(
      "Example: protean profile MODEL --calibrate book.txt --table --text other.txt --steps\n"
      "Serving takes layers to fewer bits in this order, and front to back without one.");
  app->callback([command, &exit_code] { exit_code = run_profile(*command); });
}

}  // namespace protean
