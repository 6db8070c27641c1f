#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/companions.h"
#include "apps/options.h"
#include "apps/output_directory.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "measure/calibration_text.h"
#include "model/quantized_model.h"
#include "replica/model_files.h"
#include "replica/model_place.h"
#include "terminal/output.h"
#include "terminal/progress.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

struct QuantizeCommand {
  ModelOptions model;
  std::string to = "w4";
  std::string method = "awq";
  int group = 128;
  bool symmetric = false;
  bool activation_order = false;
  double damping = 0.01;
  std::string calibrate;
  int samples = 128;
  int sequence_length = 512;
  std::string output;
  bool overwrite = false;
};

Result<QuantizeOptions> quantize_options(const QuantizeCommand& command) {
  QuantizeOptions options;
  const auto precision = parse_precision(command.to);
  if (!precision.ok()) {
    return precision.error();
  }
  if (!precision->quantised() || precision->integer_activations()) {
    return make_error(ErrorCode::kInvalidArgument, "--to {} is no quantisation: use w8, w4 or w3",
                      command.to);
  }
  options.format.bits = static_cast<int>(weight_bits(*precision));
  options.method = command.method == "awq"        ? QuantMethod::kAwq
                   : command.method == "gptq"     ? QuantMethod::kGptq
                   : command.method == "awq+gptq" ? QuantMethod::kAwqGptq
                                                  : QuantMethod::kRoundToNearest;
  options.format.group = command.group;
  // 8 bits need no zero points, and the fastest kernels take none.
  options.format.symmetric = command.symmetric || options.format.bits == 8;
  options.gptq = {.damping = command.damping, .activation_order = command.activation_order};
  const Status valid = validate(options.format);
  return valid.ok() ? Result<QuantizeOptions>(options) : valid.error();
}

Status quantize(QuantizeCommand& command) {
  const auto options = quantize_options(command);
  if (!options.ok()) {
    return options.error();
  }
  const bool calibrated = options->method != QuantMethod::kRoundToNearest;
  if (calibrated && command.calibrate.empty()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--method {} needs calibration text, like what the model will read: give --calibrate FILE, "
        "or --method rtn",
        command.method);
  }
  if (Status located = locate_model(command.model); !located.ok()) {
    return located;
  }
  const auto files = open_model_files(command.model);
  if (!files.ok()) {
    return files.error();
  }
  QuantizeJob job{.source = command.model.model, .options = *options};
  if (calibrated) {
    auto sequences = read_windows(command.calibrate, *files->tokenizer,
                                  {command.samples, command.sequence_length});
    if (!sequences.ok()) {
      return sequences.error();
    }
    job.sequences = *std::move(sequences);
  }
  auto output = OutputDirectory::create(command.output, command.overwrite);
  if (!output.ok()) {
    return output.error();
  }
  job.target = output->path();
  if (Status written = write_companions(*files, job.source, job.target); !written.ok()) {
    return written;
  }
  const auto cpus = choose_cpus(this_machine(), command.model.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  cpu::Team team(cpus->threads, cpus->where);
  const cpu::Seat seat = team.take_seat();
  if (Status written = write_quantized_model(team, job, count_bar("quantising", "layers"));
      !written.ok()) {
    return written;
  }
  if (Status finished = output->finish(); !finished.ok()) {
    return finished;
  }
  const std::string note = unusual_packing(files->checkpoint->spec(), options->format);
  print_text(fmt::format("{} holds {} at {}, group {}{}\n", command.output, files->name, command.to,
                         command.group, note.empty() ? "" : "; " + note));
  return {};
}

int run_quantize(QuantizeCommand& command) {
  const Status status = quantize(command);
  return status.ok() ? 0 : exit_with(status.error());
}

}  // namespace

void add_quantize(CLI::App& root, int& exit_code) {
  CLI::App* app =
      root.add_subcommand("quantize", "Write a copy of a model with fewer bits a weight");
  auto command = std::make_shared<QuantizeCommand>();
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
  app->option_defaults()->group("Quantisation");
  app->add_option("--to", command->to, "Precision of the layers")
      ->check(one_of({"w8", "w4", "w3"}))
      ->capture_default_str();
  app->add_option("--method", command->method,
                  "rtn rounds each weight to the nearest value; gptq, awq and awq+gptq use "
                  "calibration text, and awq loses least")
      ->check(one_of({"rtn", "awq", "gptq", "awq+gptq"}))
      ->capture_default_str();
  app->add_option("--calibrate", command->calibrate,
                  "Calibration text, like what the model will read. A .jsonl file holds one "
                  "document a line, in \"text\"")
      ->type_name("FILE")
      ->check(existing_path());
  app->add_option("--samples", command->samples, "Windows of the calibration text to use")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  app->add_option("--sequence-length", command->sequence_length, "Tokens in a window")
      ->check(whole_number(1, 32768))
      ->capture_default_str();
  app->add_option("--group", command->group, "Weights that share a scale")
      ->check(one_of({"32", "64", "128"}))
      ->capture_default_str();
  app->add_flag("--symmetric", command->symmetric,
                "Store no zero points, which is smaller and loses more; w8 never has any");
  app->add_flag("--activation-order", command->activation_order,
                "Round the inputs that vary most first (gptq only)");
  app->add_option("--damping", command->damping,
                  "Share of the mean that is added to the Hessian's diagonal (gptq only)")
      ->check(number_range(1e-6, 10.0))
      ->capture_default_str();
  add_compute_options(*app, command->model.compute);
  app->footer(
      "Example: protean quantize MODEL --to w4 --method awq --calibrate book.txt -o MODEL-w4\n"
      "The copy is a Hugging Face directory. w4 with zero points is written as AWQ, all else as "
      "GPTQ,\n"
      "which other programs read too.");
  app->callback([command, &exit_code] { exit_code = run_quantize(*command); });
}

}  // namespace protean
