#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/cpu_share.h"
#include "replica/model_options.h"
#include "terminal/exit.h"

namespace protean {

// Adds the flags of every subcommand that computes.
void add_compute_options(CLI::App& app, ComputeOptions& options);
// Adds the flags of those that divide a model among devices.
void add_group_options(CLI::App& app, GroupOptions& options);

// Adds the flags of every subcommand that loads a model. A flag that means what one of vLLM's means
// has its name.
void add_model_options(CLI::App& app, ModelOptions& options);

// Adds --variant PRECISION=MODEL, whose texts variant_sources() reads.
void add_variant_option(CLI::App& app, std::vector<std::string>& texts);

// Adds --variant-cache FOLDER.
void add_variant_cache_option(CLI::App& app, std::string& folder);

// Validators, whose ranges and words --help and errors show.
CLI::Validator whole_number(std::int64_t least, std::int64_t most);
CLI::Validator number_range(double least, double most);  // refuses NaN
CLI::Validator one_of(std::vector<std::string> words);
CLI::Validator existing_path();

inline constexpr int kMostTokens = 1 << 24;  // bound of every flag that counts tokens

// Each adds one subcommand to the root. If it is chosen, parsing runs it and sets `exit_code`.
void add_serve(CLI::App& root, int& exit_code);
void add_generate(CLI::App& root, int& exit_code);
void add_chat(CLI::App& root, int& exit_code);
void add_inspect(CLI::App& root, int& exit_code);
void add_eval(CLI::App& root, int& exit_code);
void add_quantize(CLI::App& root, int& exit_code);
void add_prune(CLI::App& root, int& exit_code);
void add_profile(CLI::App& root, int& exit_code);
void add_plan(CLI::App& root, int& exit_code);
void add_make_model(CLI::App& root, int& exit_code);
void add_simulate(CLI::App& root, int& exit_code);
void add_pull(CLI::App& root, int& exit_code);
void add_list(CLI::App& root, int& exit_code);
void add_show(CLI::App& root, int& exit_code);
void add_rm(CLI::App& root, int& exit_code);

void add_bench(CLI::App& root, int& exit_code);

}  // namespace protean
