#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/cpu_share.h"
#include "replica/model_options.h"
#include "terminal/exit.h"

namespace protean {

// What every subcommand that computes accepts.
void add_compute_options(CLI::App& app, ComputeOptions& options);

// What every subcommand that loads a model accepts. Flags have vLLM's names where they mean the
// same.
void add_model_options(CLI::App& app, ModelOptions& options);

// Adds --variant PRECISION=MODEL, whose texts variant_sources() reads.
void add_variant_option(CLI::App& app, std::vector<std::string>& texts);

// Gives every --flag of `app` the environment variable PROTEAN_FLAG.
void name_environment(CLI::App& app);

// The command line with what --config FILE (or PROTEAN_CONFIG) says added to it. The file is TOML,
// its keys are flags without the dashes, at the top or in a table named like the subcommand. What
// the command line or the environment says wins.
Result<std::vector<std::string>> with_config_file(const CLI::App& root,
                                                  std::vector<std::string> arguments);

// Subcommands: each adds itself to the root, and leaves its exit code in `exit_code` when chosen.
void add_serve(CLI::App& root, int& exit_code);
void add_generate(CLI::App& root, int& exit_code);
void add_chat(CLI::App& root, int& exit_code);
void add_inspect(CLI::App& root, int& exit_code);
void add_eval(CLI::App& root, int& exit_code);
void add_quantize(CLI::App& root, int& exit_code);
void add_profile(CLI::App& root, int& exit_code);
void add_make_model(CLI::App& root, int& exit_code);

// A number from least to most; unlike CLI11's own Range it refuses NaN.
CLI::Validator number_range(double least, double most);
inline constexpr int kMostTokens = 1 << 24;  // of anything a flag counts in tokens
void add_bench(CLI::App& root, int& exit_code);

}  // namespace protean
