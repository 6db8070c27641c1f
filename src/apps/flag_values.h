#pragma once

#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace protean {

// Appends a flag that `app` has and the value that a TOML file gives it as arguments: nothing for
// false if the flag is off by default. A switch takes true or false, any other flag a string or a
// number, or a list of them if it may be repeated; otherwise fails with an error that names the
// line and the flag.
Status append_flag(const CLI::App& app, const std::string& flag, const toml::node& value,
                   std::vector<std::string>& arguments);
// Appends a flag and the value that a JSON object gives it, by the rules of a TOML file's; an error
// names the flag.
Status append_flag(const CLI::App& app, const std::string& flag, const boost::json::value& value,
                   std::vector<std::string>& arguments);

}  // namespace protean
