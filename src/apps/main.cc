#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "apps/options.h"
#include "apps/version.h"
#include "device/cpu/instructions.h"
#include "terminal/output.h"

int main(int argc, char** argv) {
  protean::secure_standard_streams();
  if (const protean::Status known = protean::cpu::instruction_limit(); !known.ok()) {
    return protean::exit_with(known.error());
  }
  CLI::App root(
      "Protean serves open-weight language models and changes its form while it runs.\n"
      "Start with: protean serve MODEL",
      "protean");
  root.set_version_flag("--version", std::string("protean ") + protean::kVersion);
  root.require_subcommand(1);
  int exit_code = 0;
  protean::add_serve(root, exit_code);
  protean::add_generate(root, exit_code);
  protean::add_chat(root, exit_code);
  protean::add_inspect(root, exit_code);
  protean::add_eval(root, exit_code);
  protean::add_quantize(root, exit_code);
  protean::add_profile(root, exit_code);
  protean::add_make_model(root, exit_code);
  protean::add_bench(root, exit_code);
  for (CLI::App* subcommand : root.get_subcommands({})) {
    protean::name_environment(*subcommand);
  }
  auto arguments = protean::with_config_file(root, std::vector<std::string>(argv + 1, argv + argc));
  if (!arguments.ok()) {
    return protean::exit_with(arguments.error());
  }
  std::reverse(arguments->begin(), arguments->end());  // CLI11 takes them from the back
  try {
    root.parse(*arguments);
  } catch (const CLI::ParseError& error) {
    return root.exit(error) == 0 ? 0 : 2;
  }
  return exit_code;
}
