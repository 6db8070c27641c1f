#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/help.h"
#include "apps/options.h"
#include "apps/version.h"
#include "device/cpu/instructions.h"
#include "terminal/output.h"

int main(int argc, char** argv) {
  protean::secure_standard_streams();
  if (const protean::Status known = protean::cpu::instruction_limit(); !known.ok()) {
    return protean::exit_with(known.error());
  }
  CLI::App root("Serves open-weight language models and changes its form while it runs.",
                "protean");
  root.footer(
      "Start with: protean serve MODEL\n"
      "protean COMMAND --help lists the flags of a command.");
  root.formatter(std::make_shared<protean::HelpFormatter>());
  root.set_version_flag("--version", std::string("protean ") + protean::kVersion,
                        "Print the version");
  root.require_subcommand(1);
  int exit_code = 0;
  protean::add_serve(root, exit_code);
  protean::add_generate(root, exit_code);
  protean::add_chat(root, exit_code);
  protean::add_pull(root, exit_code);
  protean::add_list(root, exit_code);
  protean::add_show(root, exit_code);
  protean::add_rm(root, exit_code);
  protean::add_inspect(root, exit_code);
  protean::add_eval(root, exit_code);
  protean::add_quantize(root, exit_code);
  protean::add_prune(root, exit_code);
  protean::add_profile(root, exit_code);
  protean::add_plan(root, exit_code);
  protean::add_simulate(root, exit_code);
  protean::add_make_model(root, exit_code);
  protean::add_bench(root, exit_code);
  protean::name_environment(root);
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  for (const std::string& line : protean::unknown_variables(root, environment)) {
    fmt::print(stderr, "protean: {}\n", line);
  }
  auto arguments = protean::with_config_file(root, std::vector<std::string>(argv + 1, argv + argc));
  if (!arguments.ok()) {
    return protean::exit_with(arguments.error());
  }
  std::reverse(arguments->begin(), arguments->end());  // CLI11 takes them from the back
  try {
    root.parse(*arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return root.exit(error);  // prints help or the version
    }
    return protean::exit_with(
        {protean::ErrorCode::kInvalidArgument, protean::explain(root, error)});
  }
  return exit_code;
}
