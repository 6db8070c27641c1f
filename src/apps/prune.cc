#include <memory>
#include <string>
#include <utility>

#include "apps/model_copy.h"
#include "apps/options.h"
#include "cost/pruned_spec.h"
#include "model/pruned_model.h"
#include "terminal/output.h"
#include "terminal/progress.h"

namespace protean {
namespace {

struct PruneCommand {
  ModelCopy copy;
  std::string method = "2:4";
  int percent = 25;
};

Pruning pruning_of(const PruneCommand& command) {
  return command.method == "2:4"
             ? Pruning{.kind = PruningKind::kTwoOfFour}
             : Pruning{.kind = PruningKind::kStructured, .percent = command.percent};
}

// Says what the copy is, and how to serve it.
std::string result_text(const PruneCommand& command, const std::string& name,
                        const ModelSpec& spec) {
  if (command.method == "2:4") {
    return fmt::format("{} holds {} at 2:4; it is served at s24, with 56 % of bf16's bytes\n",
                       command.copy.output, name);
  }
  const ModelSpec pruned = pruned_spec(spec, pruning_of(command));
  return fmt::format("{} holds {} with {} of {} heads and {} of {} neurons\n", command.copy.output,
                     name, pruned.attention.heads, spec.attention.heads, pruned.ffn, spec.ffn);
}

Status prune(PruneCommand& command) {
  const auto write = [&](cpu::Team& team, CopyJob copy) {
    return write_pruned_model(team,
                              {.source = std::move(copy.source),
                               .target = std::move(copy.target),
                               .pruning = pruning_of(command),
                               .sequences = std::move(copy.sequences)},
                              count_bar("pruning", "layers"));
  };
  const auto files = write_copy(command.copy, true, write);
  if (!files.ok()) {
    return files.error();
  }
  print_text(result_text(command, files->name, files->checkpoint->spec()));
  return {};
}

int run_prune(PruneCommand& command) {
  const Status status = prune(command);
  return status.ok() ? 0 : exit_with(status.error());
}

}  // namespace

void add_prune(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand("prune", "Write a copy of a model with fewer weights");
  auto command = std::make_shared<PruneCommand>();
  add_copy_options(*app, command->copy);
  app->option_defaults()->group("Pruning");
  app->add_option("--method", command->method,
                  "2:4 zeros two of four consecutive weights, those that matter least for the "
                  "calibration text (Wanda), and is served compressed; structured removes query "
                  "heads and neurons, which leaves a smaller ordinary model")
      ->check(one_of({"2:4", "structured"}))
      ->capture_default_str();
  app->add_option("--percent", command->percent,
                  "Share of the layers' weights to remove (structured only)")
      ->check(whole_number(1, 90))
      ->capture_default_str();
  add_calibration_options(*app, command->copy)->required();
  add_compute_options(*app, command->copy.model.compute);
  app->footer(
      "Example: protean prune MODEL --method 2:4 --calibrate book.txt -o MODEL-24\n"
      "The copy is a Hugging Face directory in bf16.");
  app->callback([command, &exit_code] { exit_code = run_prune(*command); });
}

}  // namespace protean
