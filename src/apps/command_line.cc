#include "apps/command_line.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "apps/flag_values.h"
#include "apps/help.h"
#include "base/nearest.h"

namespace protean {
namespace {

std::string environment_name(std::string_view flag) {
  std::string name = "PROTEAN_";
  for (const char c : flag) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// True if the command line or the environment sets the flag.
bool is_given(const std::vector<std::string>& arguments, const std::string& flag) {
  const auto names = [&](const std::string& argument) {
    return argument == "--" + flag || argument.starts_with("--" + flag + "=") ||
           argument == "--no-" + flag;
  };
  return std::any_of(arguments.begin(), arguments.end(), names) ||
         std::getenv(environment_name(flag).c_str()) != nullptr;
}

// Takes --config off the command line. Returns its value, else PROTEAN_CONFIG, else nothing.
Result<std::string> take_config_path(std::vector<std::string>& arguments) {
  constexpr std::string_view kFlag = "--config";
  const char* named = std::getenv("PROTEAN_CONFIG");
  std::string path = named != nullptr ? named : "";
  bool found = false;
  for (auto place = arguments.begin(); place != arguments.end();) {
    const bool joined = place->starts_with("--config=");
    if (!joined && (*place != kFlag || place + 1 == arguments.end())) {
      ++place;
      continue;
    }
    if (found) {
      return make_error(ErrorCode::kInvalidArgument, "--config is given twice: give one file");
    }
    found = true;
    path = joined ? place->substr(kFlag.size() + 1) : *(place + 1);
    place = arguments.erase(place, place + (joined ? 1 : 2));
  }
  return path;
}

bool knows(const CLI::App& app, const std::string& flag) {
  return app.get_option_no_throw("--" + flag) != nullptr;
}

std::vector<const CLI::App*> commands_of(const CLI::App& root) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : root.get_subcommands({})) {
    const auto inner = commands_of(*command);
    commands.insert(commands.end(), inner.begin(), inner.end());
    commands.push_back(command);
  }
  return commands;
}

// The commands other than `app` that have this flag, as "protean serve or protean chat".
std::string owners_of(const std::string& flag, const CLI::App& root, const CLI::App& app) {
  std::string owners;
  for (const CLI::App* command : commands_of(root)) {
    if (command != &app && knows(*command, flag)) {
      owners += (owners.empty() ? "protean " : " or protean ") + full_name(*command);
    }
  }
  return owners;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back(name);
    }
  }
  return flags;
}

std::vector<std::string> names_of(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) {
    names.push_back(command->get_name());
  }
  return names;
}

// "did you mean --port?", or where to look if nothing is near.
std::string advice(const std::string& near, const std::string& command) {
  return near.empty() ? fmt::format("see {} --help", command)
                      : fmt::format("did you mean {}?", near);
}

// A file may serve several commands: it may set flags of those too.
Status append_table(const toml::table& table, const CLI::App& root, const CLI::App& app,
                    std::vector<std::string>& arguments) {
  const std::vector<std::string> given = arguments;
  for (const auto& [key, value] : table) {
    std::string flag(key.str());
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (value.is_table()) {
      const auto commands = root.get_subcommands({});
      const auto names = names_of(commands);
      if (std::find(names.begin(), names.end(), flag) == names.end()) {
        return make_error(ErrorCode::kInvalidArgument, "line {}: there is no command '{}': {}",
                          value.source().begin.line, key.str(),
                          advice(nearest(flag, names), "protean"));
      }
      continue;
    }
    if (!knows(app, flag)) {
      if (owners_of(flag, root, app).empty()) {
        const std::string command = "protean " + full_name(app);
        return make_error(ErrorCode::kInvalidArgument, "line {}: '{}' is no flag of {}: {}",
                          value.source().begin.line, flag, command,
                          advice(nearest(flag, flags_of(app)), command));
      }
      continue;
    }
    if (is_given(given, flag)) {
      continue;
    }
    if (Status added = append_flag(app, flag, value, arguments); !added.ok()) {
      return added;
    }
  }
  return {};
}

std::string command_name(const CLI::App& app) {
  const std::string name = full_name(app);
  return name.empty() ? "protean" : "protean " + name;
}

bool takes_model(const CLI::App& app) {
  return app.get_option_no_throw("MODEL") != nullptr;
}

std::string unknown_flag(const CLI::App& root, const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(word.find_first_not_of('-'));
  const std::string flag = name.substr(0, name.find('='));
  const std::string command = command_name(app);
  if ((flag == "model" || flag == "m") && takes_model(app)) {
    return fmt::format("{} has no flag {}: the model is an argument, as in {} MODEL", command,
                       word.substr(0, word.find('=')), command);
  }
  if (const std::string owners = owners_of(flag, root, app); !owners.empty()) {
    return fmt::format("{} has no flag --{}: it is a flag of {}", command, flag, owners);
  }
  const std::string near = nearest(flag, flags_of(app));
  return fmt::format("{} has no flag {}: {}", command, word.substr(0, word.find('=')),
                     advice(near.empty() ? "" : "--" + near, command));
}

std::string unknown_word(const CLI::App& app, const std::string& word) {
  const std::string command = command_name(app);
  const auto commands = app.get_subcommands({});
  if (commands.empty()) {
    return fmt::format("{} does not know what to do with '{}': see {} --help", command, word,
                       command);
  }
  return fmt::format("{} has no command '{}': {}", command, word,
                     advice(nearest(word, names_of(commands)), command));
}

const CLI::App& chosen_command(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : chosen_command(*chosen.front());
}

// Returns the outermost command with arguments that it did not take, otherwise the chosen command.
const CLI::App& failed_command(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() || !app.remaining().empty() ? app : failed_command(*chosen.front());
}

// True for "-p" and "--port", not for "-" and "--".
bool is_flag(const std::string& word) {
  return word.starts_with('-') && word.find_first_not_of('-') != std::string::npos;
}

// Returns the first argument that no option took, flags before words; empty if there is none.
std::string offending_word(const CLI::App& app) {
  std::vector<std::string> left = app.remaining();
  left.erase(std::remove(left.begin(), left.end(), "--"), left.end());  // CLI11's mark of words
  const auto flag = std::find_if(left.begin(), left.end(), is_flag);
  const bool words_first = !app.get_subcommands({}).empty() && app.get_subcommands().empty();
  return left.empty() ? "" : words_first || flag == left.end() ? left.front() : *flag;
}

}  // namespace

Result<std::vector<std::string>> with_config_file(const CLI::App& root,
                                                  std::vector<std::string> arguments) {
  const auto taken = take_config_path(arguments);
  if (!taken.ok()) {
    return taken.error();
  }
  const std::string& path = *taken;
  const auto chosen = root.get_subcommands([&](const CLI::App* app) {
    return !arguments.empty() && app->get_name() == arguments.front();
  });
  if (path.empty() || chosen.empty()) {
    return arguments;
  }
  const auto fail = [&](std::string_view why) {
    return make_error(ErrorCode::kInvalidArgument, "--config {}: {}", path, why);
  };
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) {
    return fail("there is no such file");
  }
  try {
    const toml::table file = toml::parse_file(path);
    // The subcommand's own table overrides the top of the file.
    const CLI::App& outer = *chosen.front();
    const auto inner = outer.get_subcommands([&](const CLI::App* app) {
      return arguments.size() > 1 && app->get_name() == arguments[1];
    });
    const CLI::App& app = inner.empty() ? outer : *inner.front();
    const toml::table* own = inner.empty() ? file[outer.get_name()].as_table()
                                           : file[outer.get_name()][app.get_name()].as_table();
    Status added = own == nullptr ? Status() : append_table(*own, root, app, arguments);
    if (added.ok()) {
      added = append_table(file, root, app, arguments);
    }
    if (!added.ok()) {
      return fail(added.error().message);
    }
  } catch (const toml::parse_error& error) {
    return fail(fmt::format("line {}: {}", error.source().begin.line, error.description()));
  }
  return arguments;
}

namespace {

// Appends a table of read_tables().
Status append_flags(const toml::table& table, const CLI::App& app,
                    std::vector<std::string>& arguments) {
  for (const auto& [key, value] : table) {
    std::string flag(key.str());
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (!knows(app, flag)) {
      return make_error(ErrorCode::kInvalidArgument, "line {}: '{}' is no flag of a model: {}",
                        value.source().begin.line, key.str(),
                        advice(nearest(flag, flags_of(app)), "protean serve"));
    }
    if (Status added = append_flag(app, flag, value, arguments); !added.ok()) {
      return added;
    }
  }
  return {};
}

}  // namespace

Result<std::vector<TableArguments>> read_tables(const std::string& flag, const std::string& path,
                                                const CLI::App& app) {
  const auto fail = [&](std::string_view why) {
    return make_error(ErrorCode::kInvalidArgument, "{} {}: {}", flag, path, why);
  };
  std::map<std::uint32_t, TableArguments> tables;  // by line; a TOML table sorts its keys
  try {
    const toml::table file = toml::parse_file(path);
    for (const auto& [key, value] : file) {
      const std::uint32_t line = value.source().begin.line;
      const toml::table* table = value.as_table();
      if (table == nullptr) {
        return fail(
            fmt::format("line {}: '{}' must be in a table that names a model, such as "
                        "[story]",
                        line, key.str()));
      }
      TableArguments read{.name = std::string(key.str()), .arguments = {}};
      if (const Status added = append_flags(*table, app, read.arguments); !added.ok()) {
        return fail(added.error().message);
      }
      tables.emplace(line, std::move(read));
    }
  } catch (const toml::parse_error& error) {
    return fail(fmt::format("line {}: {}", error.source().begin.line, error.description()));
  }
  if (tables.empty()) {
    return fail("there is no table, which a model needs");
  }
  std::vector<TableArguments> ordered;
  for (auto& [line, table] : tables) {
    ordered.push_back(std::move(table));
  }
  return ordered;
}

Result<std::vector<std::string>> read_flags(const boost::json::object& fields,
                                            const CLI::App& app) {
  std::vector<std::string> arguments;
  for (const auto& [key, value] : fields) {
    std::string flag(key);
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (!knows(app, flag)) {
      return make_error(ErrorCode::kInvalidArgument, "'{}' is no flag of a model: {}",
                        std::string_view(key),
                        advice(nearest(flag, flags_of(app)), "protean serve"));
    }
    if (Status added = append_flag(app, flag, value, arguments); !added.ok()) {
      return added.error();
    }
  }
  return arguments;
}

void name_environment(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    name_environment(*command);
  }
  for (CLI::Option* option : app.get_options()) {
    const auto& names = option->get_lnames();
    const bool is_model = takes_model(app) && !names.empty() && names.front() == "model";
    if (!names.empty() && names.front() != "help" && !is_model) {
      option->envname(environment_name(names.front()));
    }
  }
  if (app.get_subcommands({}).empty()) {
    app.footer(app.get_footer() + (app.get_footer().empty() ? "" : "\n\n") +
               "Every --some-flag can also be set as PROTEAN_SOME_FLAG in the environment, or as "
               "some-flag in a\nTOML file that --config FILE names. The command line overrides the "
               "environment, which overrides\nthe file.");
  }
}

std::vector<std::string> unknown_variables(const CLI::App& root,
                                           std::span<const std::string> environment) {
  std::vector<std::string> known = {"PROTEAN_CONFIG", "PROTEAN_CPU",
                                    "PROTEAN_DATA"};  // the last is for tests
  for (const CLI::App* command : commands_of(root)) {
    for (const CLI::Option* option : command->get_options()) {
      known.push_back(option->get_envname());
    }
  }
  std::vector<std::string> lines;
  for (const std::string& variable : environment) {
    const std::string name = variable.substr(0, variable.find('='));
    if (name.starts_with("PROTEAN_") &&
        std::find(known.begin(), known.end(), name) == known.end()) {
      lines.push_back(fmt::format("{} in the environment has no effect: {}", name,
                                  advice(nearest(name, known), "protean COMMAND")));
    }
  }
  return lines;
}

std::string explain_values(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) {
    return text;
  }
  for (const CLI::Option* option : app.get_options()) {
    const bool joins = option->get_multi_option_policy() == CLI::MultiOptionPolicy::Join;
    if (option->get_items_expected_max() == 1 && option->count() > 1 && !joins) {
      return fmt::format("{} is given {} but takes one value: give it once", option->get_name(),
                         option->count() == 2 ? "twice" : fmt::format("{} times", option->count()));
    }
  }
  return text.ends_with(" missing") ? text.substr(0, text.find(':')) + " needs a value" : text;
}

std::string explain(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& app = failed_command(root);
  const std::string command = command_name(app);
  const std::string word = offending_word(app);
  std::string text = explain_values(app, error);
  if (is_flag(word)) {
    text = unknown_flag(root, app, word);
  } else if (!word.empty()) {
    text = unknown_word(chosen_command(app), word);
  } else if (!app.get_subcommands({}).empty()) {
    text = fmt::format("{} needs a command: see {} --help", command, command);
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_required() && option->count() == 0) {
        const std::string name =
            option->get_positional() ? option->get_type_name() : option->get_name();
        text = fmt::format("{} needs {}: see {} --help", command, name, command);
        break;
      }
    }
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace protean
