#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"

namespace protean {

// What every subcommand that computes accepts.
struct ComputeOptions {
  std::string cpus;  // like 0-7,16; empty = all that this process may use
  int threads = 0;   // 0 = one for each of them
};
void add_compute_options(CLI::App& app, ComputeOptions& options);

// What every subcommand that loads a model accepts. Flags have vLLM's names where they mean the
// same.
struct ModelOptions {
  std::string model;
  std::string dtype = "auto";
  std::string max_model_len = "auto";
  std::string kv_cache_dtype = "auto";
  std::string kv_cache_memory = "auto";
  std::string device_memory = "auto";  // of weights, KV and activations together
  std::vector<Precision> ladder;       // what layers may be lowered to while they serve; else empty
  std::string chat_template;
  std::string special_tokens_in_content = "escape";  // or "allow"
  ComputeOptions compute;
  int block_size = 16;
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  bool prefix_caching = true;
};
void add_model_options(CLI::App& app, ModelOptions& options);

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

// Says the error in one line on standard error. The exit code: 2 for what the user can mend.
int exit_with(const Error& error);
inline constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as shells have it

}  // namespace protean
