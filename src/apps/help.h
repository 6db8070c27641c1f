#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace protean {

// Lays out --help: usage, what the command does, then its flags by group in the order in which
// they were added, each with its values, range and default, wrapped to 100 columns.
class HelpFormatter final : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

// "serve", "bench serve"; empty for the root.
std::string full_name(const CLI::App& app);

}  // namespace protean
