#include <filesystem>
#include <memory>
#include <string>

#include "apps/companions.h"
#include "apps/options.h"
#include "apps/output_directory.h"
#include "cost/pruned_spec.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "measure/calibration_text.h"
#include "model/pruned_model.h"
#include "replica/model_files.h"
#include "replica/model_place.h"
#include "terminal/output.h"
#include "terminal/progress.h"

namespace protean {
namespace {

struct PruneCommand {
  ModelOptions model;
  std::string method = "2:4";
  int percent = 25;
  std::string calibrate;
  int samples = 128;
  int sequence_length = 512;
  std::string output;
  bool overwrite = false;
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
                       command.output, name);
  }
  const ModelSpec pruned = pruned_spec(spec, pruning_of(command));
  return fmt::format("{} holds {} with {} of {} heads and {} of {} neurons\n", command.output, name,
                     pruned.attention.heads, spec.attention.heads, pruned.ffn, spec.ffn);
}

Status prune(PruneCommand& command) {
  if (Status located = locate_model(command.model); !located.ok()) {
    return located;
  }
  const auto files = open_model_files(command.model);
  if (!files.ok()) {
    return files.error();
  }
  auto sequences = read_windows(command.calibrate, *files->tokenizer,
                                {command.samples, command.sequence_length});
  if (!sequences.ok()) {
    return sequences.error();
  }
  auto output = OutputDirectory::create(command.output, command.overwrite);
  if (!output.ok()) {
    return output.error();
  }
  if (Status written = write_companions(*files, command.model.model, output->path());
      !written.ok()) {
    return written;
  }
  const auto cpus = choose_cpus(this_machine(), command.model.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  cpu::Team team(cpus->threads, cpus->where);
  const cpu::Seat seat = team.take_seat();
  const PruneJob job{.source = command.model.model,
                     .target = output->path(),
                     .pruning = pruning_of(command),
                     .sequences = *std::move(sequences)};
  if (Status written = write_pruned_model(team, job, count_bar("pruning", "layers"));
      !written.ok()) {
    return written;
  }
  if (Status finished = output->finish(); !finished.ok()) {
    return finished;
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
  app->add_option(
         "MODEL", command->model.model,
         "Hugging Face directory (config.json, *.safetensors, tokenizer), .gguf file, or name on a "
         "hub, in bf16, f16 or f32")
      ->type_name("MODEL")
      ->required();
  app->option_defaults()->group("Output");
  app->add_option("-o,--output", command->output, "Directory to write")
      ->type_name("FOLDER")
      ->required();
  app->add_flag("--overwrite", command->overwrite, "Replace the model in that directory");
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
  app->add_option("--calibrate", command->calibrate,
                  "Calibration text, like what the model will read. A .jsonl file holds one "
                  "document a line, in \"text\"")
      ->type_name("FILE")
      ->check(existing_path())
      ->required();
  app->add_option("--samples", command->samples, "Windows of the calibration text to use")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  app->add_option("--sequence-length", command->sequence_length, "Tokens in a window")
      ->check(whole_number(1, 32768))
      ->capture_default_str();
  add_compute_options(*app, command->model.compute);
  app->footer(
      "Example: protean prune MODEL --method 2:4 --calibrate book.txt -o MODEL-24\n"
      "The copy is a Hugging Face directory in bf16.");
  app->callback([command, &exit_code] { exit_code = run_prune(*command); });
}

}  // namespace protean
