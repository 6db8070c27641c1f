#include "apps/model_copy.h"

#include <utility>

#include "apps/companions.h"
#include "apps/options.h"
#include "apps/output_directory.h"
#include "device/cpu/seat.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "measure/calibration_text.h"
#include "replica/model_place.h"

namespace protean {

void add_copy_options(CLI::App& app, ModelCopy& copy) {
  app.add_option(
         "MODEL", copy.model.model,
         "Hugging Face directory (config.json, *.safetensors, tokenizer), .gguf file, or name on a "
         "hub, in bf16, f16 or f32")
      ->type_name("MODEL")
      ->required();
  app.option_defaults()->group("Output");
  app.add_option("-o,--output", copy.output, "Directory to write")->type_name("FOLDER")->required();
  app.add_flag("--overwrite", copy.overwrite, "Replace the model in that directory");
}

CLI::Option* add_calibration_options(CLI::App& app, ModelCopy& copy) {
  CLI::Option* const calibrate =
      app.add_option("--calibrate", copy.calibrate,
                     "Calibration text, like what the model will read. A .jsonl file holds one "
                     "document a line, in \"text\"")
          ->type_name("FILE")
          ->check(existing_path());
  app.add_option("--samples", copy.samples, "Windows of the calibration text to use")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  app.add_option("--sequence-length", copy.sequence_length, "Tokens in a window")
      ->check(whole_number(1, 32768))
      ->capture_default_str();
  return calibrate;
}

Result<ModelFiles> write_copy(ModelCopy& copy, bool calibrated,
                              const std::function<Status(cpu::Team& team, CopyJob job)>& write) {
  if (const Status located = locate_model(copy.model); !located.ok()) {
    return located.error();
  }
  auto files = open_model_files(copy.model);
  if (!files.ok()) {
    return files.error();
  }
  CopyJob job{.source = copy.model.model, .target = {}, .sequences = {}};
  if (calibrated) {
    auto sequences =
        read_windows(copy.calibrate, *files->tokenizer, {copy.samples, copy.sequence_length});
    if (!sequences.ok()) {
      return sequences.error();
    }
    job.sequences = *std::move(sequences);
  }
  auto output = OutputDirectory::create(copy.output, copy.overwrite);
  if (!output.ok()) {
    return output.error();
  }
  job.target = output->path();
  if (const Status written = write_companions(*files, job.source, job.target); !written.ok()) {
    return written.error();
  }
  const auto cpus = choose_cpus(this_machine(), copy.model.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  cpu::Team team(cpus->threads, cpus->where);
  const cpu::Seat seat = team.take_seat();
  if (const Status written = write(team, std::move(job)); !written.ok()) {
    return written.error();
  }
  if (const Status finished = output->finish(); !finished.ok()) {
    return finished.error();
  }
  return files;
}

}  // namespace protean
