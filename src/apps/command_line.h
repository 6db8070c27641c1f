#pragma once

#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace protean {

// The command line with what --config FILE (or PROTEAN_CONFIG) says added to it. The file is TOML,
// its keys are flags without the dashes, at the top or in a table named like the subcommand. The
// command line and the environment override the file.
Result<std::vector<std::string>> with_config_file(const CLI::App& root,
                                                  std::vector<std::string> arguments);

// What a table of a TOML file says, as the arguments of a command.
struct TableArguments {
  std::string name;
  std::vector<std::string> arguments;
};

// Reads the TOML file that `flag` names: a table for each thing that a command has several of,
// whose keys are flags of `app` without the dashes. Returns the tables in the order of the file.
Result<std::vector<TableArguments>> read_tables(const std::string& flag, const std::string& path,
                                                const CLI::App& app);

// Reads a JSON object whose keys are flags of `app` without the dashes, with - or _, and whose
// values are strings and numbers, lists of them for a flag that may be repeated, or booleans for a
// switch. Returns them as arguments. Errors name the key.
Result<std::vector<std::string>> read_flags(const boost::json::object& fields, const CLI::App& app);

// Gives every --flag of `app` and its subcommands the environment variable PROTEAN_FLAG, and
// documents --config. A flag that means what the argument MODEL does has no variable, because
// services keep MODEL in PROTEAN_MODEL.
void name_environment(CLI::App& app);

// One line for each variable of `environment` ("NAME=VALUE") that begins with PROTEAN_ and that no
// command reads.
std::vector<std::string> unknown_variables(const CLI::App& root,
                                           std::span<const std::string> environment);

// Explains an error of parsing arguments of `app`; in words if a flag has too many values or none.
std::string explain_values(const CLI::App& app, const CLI::ParseError& error);

// Explains in one line what is wrong with the command line: the offending word, and the nearest
// command or flag.
std::string explain(const CLI::App& root, const CLI::ParseError& error);

}  // namespace protean
