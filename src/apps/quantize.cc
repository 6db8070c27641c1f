#include <memory>
#include <string>
#include <utility>

#include "apps/model_copy.h"
#include "apps/options.h"
#include "model/quantized_model.h"
#include "terminal/output.h"
#include "terminal/progress.h"

namespace protean {
namespace {

struct QuantizeCommand {
  ModelCopy copy;
  std::string to = "w4";
  std::string method = "awq";
  int group = 128;
  bool symmetric = false;
  bool activation_order = false;
  double damping = 0.01;
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
  if (calibrated && command.copy.calibrate.empty()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--method {} needs calibration text, like what the model will read: give --calibrate FILE, "
        "or --method rtn",
        command.method);
  }
  const auto write = [&](cpu::Team& team, CopyJob copy) {
    return write_quantized_model(team,
                                 {.source = std::move(copy.source),
                                  .target = std::move(copy.target),
                                  .options = *options,
                                  .sequences = std::move(copy.sequences)},
                                 count_bar("quantising", "layers"));
  };
  const auto files = write_copy(command.copy, calibrated, write);
  if (!files.ok()) {
    return files.error();
  }
  const std::string note = unusual_packing(files->checkpoint->spec(), options->format);
  print_text(fmt::format("{} holds {} at {}, group {}{}\n", command.copy.output, files->name,
                         command.to, command.group, note.empty() ? "" : "; " + note));
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
  add_copy_options(*app, command->copy);
  app->option_defaults()->group("Quantisation");
  app->add_option("--to", command->to, "Precision of the layers")
      ->check(one_of({"w8", "w4", "w3"}))
      ->capture_default_str();
  app->add_option("--method", command->method,
                  "rtn rounds each weight to the nearest value; gptq, awq and awq+gptq use "
                  "calibration text, and awq loses least")
      ->check(one_of({"rtn", "awq", "gptq", "awq+gptq"}))
      ->capture_default_str();
  add_calibration_options(*app, command->copy);
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
  add_compute_options(*app, command->copy.model.compute);
  app->footer(
      "Example: protean quantize MODEL --to w4 --method awq --calibrate book.txt -o MODEL-w4\n"
      "The copy is a Hugging Face directory. w4 with zero points is written as AWQ, all else as "
      "GPTQ,\n"
      "which other programs read too.");
  app->callback([command, &exit_code] { exit_code = run_quantize(*command); });
}

}  // namespace protean
