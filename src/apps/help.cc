#include "apps/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace protean {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kColumn = 32;  // where descriptions begin
constexpr std::size_t kLongestChoices = 40;

// Breaks `text` at spaces into lines that fit between `indent` and the right edge.
std::string wrap(std::string_view text, std::size_t indent) {
  std::string wrapped;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (column > 0 && indent + column + 1 + word.size() > kWidth) {
      wrapped += "\n" + std::string(indent, ' ');
      column = 0;
    }
    wrapped += (column > 0 ? " " : "") + std::string(word);
    column += (column > 0 ? 1 : 0) + word.size();
    text = space == text.npos ? std::string_view() : text.substr(space + 1);
  }
  return wrapped;
}

std::string entry(const std::string& left, const std::string& description) {
  std::string text = "  " + left;
  text += text.size() + 2 > kColumn ? "\n" + std::string(kColumn, ' ')
                                    : std::string(kColumn - text.size(), ' ');
  return text + wrap(description, kColumn) + "\n";
}

// Returns the values that validators allow, such as "{off,balanced}" or "0 to 65535"; empty if
// there is no validator.
std::string values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t colon = type.find(':');
  return colon == type.npos ? "" : type.substr(colon + 1);
}

// "off|balanced" if values are few words; else empty.
std::string choices_of(const CLI::Option& option) {
  std::string values = values_of(option);
  if (!values.starts_with('{') || values.size() > kLongestChoices) {
    return "";
  }
  values = values.substr(1, values.size() - 2);
  std::replace(values.begin(), values.end(), ',', '|');
  return values;
}

std::string placeholder_of(const CLI::Option& option) {
  if (option.get_type_size() == 0 || option.get_type_name().empty()) {
    return "";
  }
  if (std::string choices = choices_of(option); !choices.empty()) {
    return " " + choices;
  }
  const std::string type = option.get_type_name();
  const std::string name = type.substr(0, type.find(':'));
  return " " + (name == "INT" || name == "UINT" ? "N" : name == "FLOAT" ? "NUMBER" : name);
}

std::string names_of(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) {
    names += "-" + name + ", ";
  }
  const std::vector<std::string>& words = option.get_lnames();
  for (const std::string& name : words) {
    const bool negated = std::find(words.begin(), words.end(), "no-" + name) != words.end();
    const bool negation = name.starts_with("no-") &&
                          std::find(words.begin(), words.end(), name.substr(3)) != words.end();
    names += negation ? "" : (negated ? "--[no-]" : "--") + name + ", ";
  }
  return names.substr(0, names.size() - 2);
}

// "(0 to 65535, default 8000)"
std::string limits_of(const CLI::Option& option) {
  std::string limits;
  if (choices_of(option).empty()) {
    for (const char letter : values_of(option)) {
      limits += letter == ',' ? ", " : std::string(1, letter);  // lines break at spaces
    }
  }
  if (std::string usual = option.get_default_str(); !usual.empty()) {
    if (usual.starts_with('[') && usual.ends_with(']')) {
      usual = usual.substr(1, usual.size() - 2);
    }
    limits += (limits.empty() ? "default " : ", default ") + usual;
  }
  return limits.empty() ? "" : " (" + limits + ")";
}

std::string options_text(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      text += entry(option->get_type_name(), option->get_description());
    }
  }
  text = text.empty() ? "" : "\n" + text;
  for (const std::string& group : app.get_groups()) {
    std::string entries;
    for (const CLI::Option* option : app.get_options()) {
      if (!option->get_positional() && option->get_group() == group &&
          option != app.get_help_ptr()) {
        entries += entry(names_of(*option) + placeholder_of(*option),
                         option->get_description() + limits_of(*option));
      }
    }
    if (!entries.empty() && !group.empty()) {
      text.append("\n").append(group).append(":\n").append(entries);
    }
  }
  return text;
}

std::string commands_text(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands({})) {
    text += entry(command->get_name(), command->get_description());
  }
  return text.empty() ? "" : "\nCommands:\n" + text;
}

}  // namespace

std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  if (parent == nullptr) {
    return "";
  }
  const std::string outer = full_name(*parent);
  return outer.empty() ? app.get_name() : outer + " " + app.get_name();
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode /*mode*/) const {
  std::string usage = "Usage: " + name;
  for (const CLI::Option* option : app->get_options()) {
    usage += option->get_positional() ? " " + option->get_type_name() : "";
  }
  usage += app->get_subcommands({}).empty() ? " [OPTIONS]\n\n" : " COMMAND\n\n";
  const std::string footer = app->get_footer();
  return usage + wrap(app->get_description(), 0) + "\n" + commands_text(*app) + options_text(*app) +
         (footer.empty() ? "" : "\n" + footer + "\n");
}

}  // namespace protean
