#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <utility>

#include "apps/options.h"
#include "apps/version.h"
#include "measure/json_line.h"
#include "measure/layer_profile.h"
#include "measure/step_profile.h"
#include "replica/model_place.h"
#include "replica/variant_sources.h"
#include "terminal/output.h"

namespace protean {
namespace {

namespace json = boost::json;

struct ProfileCommand {
  LayerProfileOptions layers;
  StepProfileOptions steps;
  bool times_steps = false;
  bool makes_fingerprint = false;
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
  auto path = locate_model(command.layers.model);
  if (!path.ok()) {
    return exit_with(path.error());
  }
  command.layers.model = *std::move(path);
  command.steps.source = {
      .model = command.layers.model, .directory = command.layers.cache, .version = kVersion};
  command.steps.fingerprint = command.makes_fingerprint;
  command.steps.compute = command.layers.compute;
  if (const auto sources = variant_sources(command.layers.variants); !sources.ok()) {
    return exit_with(sources.error());
  }
  if (command.shows_steps) {
    return show_steps(command);
  }
  if (command.layers.calibrate.empty() && !command.times_steps && !command.makes_fingerprint) {
    return exit_with({ErrorCode::kInvalidArgument,
                      "there is nothing to learn: give --calibrate FILE to rank layers, --steps to "
                      "time steps, or --fingerprint to time the first two layers"});
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
  if (command.times_steps || command.makes_fingerprint) {
    const auto steps =
        command.times_steps ? profile_steps(command.steps) : profile_fingerprint(command.steps);
    if (!steps.ok()) {
      return exit_with(steps.error());
    }
    object[command.times_steps ? "steps" : "fingerprint"] = steps->json;
    if (!command.as_json) {
      print_text(steps->text);
    }
  }
  if (command.as_json) {
    print_text(json_line(std::move(object)));
  }
  return 0;
}

void add_layer_options(CLI::App& app, LayerProfileOptions& options) {
  app.option_defaults()->group("Ranking of layers");
  app.add_option("--calibrate", options.calibrate,
                 "Rank the layers with this text, which should be like what the model will read. A "
                 ".jsonl file holds one document a line, in \"text\"")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option("--precision", options.precision, "Precision that layers are lowered to")
      ->type_name("PRECISION")
      ->check(one_of({"w8", "w8a8", "w8a7", "w4", "w4a8", "w3"}))
      ->capture_default_str();
  app.add_flag("--halves", options.halves, "Rank the attention and the MLP of a layer separately");
  app.add_option("--metric", options.metric, "Measure of change")
      ->check(one_of({"cosine", "l2"}))
      ->capture_default_str();
  app.add_option("--weights", options.weights,
                 "Weights of the three terms of the layer importance score: how little the layer "
                 "transforms its input, how little its output changes at fewer bits, and how "
                 "little the model's output does")
      ->type_name("A,B,C")
      ->delimiter(',')
      ->expected(3)
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--samples", options.windows.samples, "Windows of each text to use")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  app.add_option("--sequence-length", options.windows.length, "Tokens in a window")
      ->check(whole_number(2, 32768))
      ->capture_default_str();
  app.add_flag("--table", options.table,
               "Also print perplexities by how many layers are lowered, in this and other orders");
  app.add_option("--text", options.text, "Second text for that table")
      ->type_name("FILE")
      ->check(existing_path());
  add_variant_option(app, options.variants);
}

void add_step_options(CLI::App& app, ProfileCommand& command) {
  app.option_defaults()->group("Timing of steps");
  app.add_flag("--steps", command.times_steps,
               "Time steps of the model on this machine and fit the cost model to them");
  app.add_flag("--fingerprint", command.makes_fingerprint,
               "Estimate them from the first two layers instead, in about 3 seconds, as a server "
               "does that finds no cost model; with --steps also compare the two");
  app.add_flag("--show-steps", command.shows_steps,
               "Print the cost model that was kept, and measure nothing");
  app.add_option("--step-precisions", command.steps.precisions,
                 "Precisions of the layers in timed steps")
      ->type_name("LIST")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(one_of({"bf16", "s24", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"}))
      ->capture_default_str();
  app.add_option("--longest-step", command.steps.longest,
                 "Tokens of the longest prompt and context in a timed step")
      ->check(whole_number(128, 65536))
      ->capture_default_str();
  app.add_option("--step-repeat", command.steps.repeat, "Times that each step is timed at least")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  app.add_flag("--cpu-time", command.steps.cpu_time,
               "Measure processor time, for machines that have other work");
}

}  // namespace

void add_profile(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "profile", "Measure what a model's layers lose at fewer bits, and how long its steps take");
  auto command = std::make_shared<ProfileCommand>();
  app->add_option("MODEL", command->layers.model,
                  "Hugging Face directory, .gguf file, or ORG/NAME on a hub")
      ->type_name("MODEL")
      ->required();
  add_layer_options(*app, command->layers);
  add_step_options(*app, *command);
  app->option_defaults()->group("Output");
  add_variant_cache_option(*app, command->layers.cache);
  app->add_flag("--json", command->as_json, "Print one JSON object");
  add_compute_options(*app, command->layers.compute);
  app->footer(
      "Example: protean profile MODEL --calibrate book.txt --table --text other.txt --steps\n"
      "A server lowers layers in the order that was measured, and weighs what each loses. Without\n"
      "a profile it goes front to back and takes typical losses.");
  app->callback([command, &exit_code] { exit_code = run_profile(*command); });
}

}  // namespace protean
