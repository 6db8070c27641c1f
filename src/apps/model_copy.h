#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/cpu/team.h"
#include "replica/model_files.h"
#include "replica/model_options.h"

namespace protean {

// A changed copy of a model that a command writes, and the calibration text that it is made with.
struct ModelCopy {
  ModelOptions model;
  std::string calibrate;
  int samples = 128;
  int sequence_length = 512;
  std::string output;
  bool overwrite = false;
};

// Adds MODEL, --output and --overwrite.
void add_copy_options(CLI::App& app, ModelCopy& copy);
// Adds --calibrate, which is returned, --samples and --sequence-length.
CLI::Option* add_calibration_options(CLI::App& app, ModelCopy& copy);

// What the weights of a copy are made from and written to.
struct CopyJob {
  std::filesystem::path source;
  std::filesystem::path target;
  std::vector<std::vector<TokenId>> sequences;  // empty unless the copy is calibrated
};

// Finds and opens the model, reads the calibration text if `calibrated`, and writes the copy with
// its tokenizer and other files, whole or not at all. `write` writes config and weights. Returns
// the model that was copied.
Result<ModelFiles> write_copy(ModelCopy& copy, bool calibrated,
                              const std::function<Status(cpu::Team& team, CopyJob job)>& write);

}  // namespace protean
