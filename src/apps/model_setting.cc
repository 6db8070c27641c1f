#include "apps/model_setting.h"

#include <boost/json/serialize.hpp>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "apps/command_line.h"
#include "apps/options.h"
#include "contract/intent.h"
#include "ports/step_turn.h"

namespace protean {
namespace {

// Adds the flags that a model's table may have.
void add_table_flags(CLI::App& app, ModelSetting& setting) {
  app.set_help_flag();
  add_model_setting(app, setting);
  app.add_option("--model", setting.model.model);
}

// Returns the setting of a model with flags that `common` has otherwise.
Result<ModelSetting> setting_of(const ModelSetting& common, const std::string& name,
                                const std::vector<std::string>& flags) {
  ModelSetting setting = common;
  setting.name = name;
  CLI::App app;
  add_table_flags(app, setting);
  try {
    app.parse(std::vector<std::string>(flags.rbegin(), flags.rend()));  // takes them from the back
  } catch (const CLI::ParseError& error) {
    return make_error(ErrorCode::kInvalidArgument, "{}", explain_values(app, error));
  }
  return setting;
}

// Returns an error if a JSON object names no model.
Status check_model(const boost::json::object& fields) {
  const boost::json::value* model = fields.if_contains("model");
  const boost::json::string* text = model == nullptr ? nullptr : model->if_string();
  if (text != nullptr && !text->empty()) {
    return {};
  }
  return make_error(
      ErrorCode::kInvalidArgument,
      "\"model\" is {}: give a path, or a name on a hub that was pulled, as a string",
      model == nullptr ? "missing" : (text == nullptr ? boost::json::serialize(*model) : "empty"));
}

// Reads a model's table of the file `path`.
Result<ModelSetting> setting_of(const ModelSetting& common, const TableArguments& table,
                                const std::string& path) {
  auto setting = setting_of(common, table.name, table.arguments);
  if (!setting.ok()) {
    return make_error(ErrorCode::kInvalidArgument, "--models {}: [{}]: {}", path, table.name,
                      setting.error().message);
  }
  if (setting->model.model.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--models {}: [{}] needs model = \"MODEL\", a path or a name on a hub", path,
                      table.name);
  }
  return setting;
}

// Returns the names that a user gave a model.
std::vector<std::string> given_names(const ModelSetting& setting) {
  std::vector<std::string> names;
  if (!setting.name.empty()) {
    names.push_back(setting.name);
  }
  names.insert(names.end(), setting.served_names.begin(), setting.served_names.end());
  return names;
}

// Returns an error if a name is given to two models.
Status check_names(const std::vector<ModelSetting>& settings) {
  std::map<std::string, std::string> owners;
  for (const ModelSetting& setting : settings) {
    for (const std::string& name : given_names(setting)) {
      const auto [place, is_new] = owners.emplace(name, setting.model.model);
      if (!is_new) {
        return make_error(ErrorCode::kInvalidArgument,
                          "two models are named \"{}\", {} and {}: give each a name of its own",
                          name, place->second, setting.model.model);
      }
    }
  }
  return {};
}

// Returns the error for NAME=INTENT if no model has that name. If neither the whole nor INTENT is
// an intent, says what is wrong with the whole, such as a bound without a unit.
Error unnamed_intent(const std::string& text, const std::vector<ModelSetting>& settings) {
  const std::size_t equals = text.find('=');
  if (!parse_intent(text.substr(equals + 1)).ok()) {
    return parse_intent(text).error();
  }
  std::string names;
  for (const ModelSetting& setting : settings) {
    for (const std::string& name : given_names(setting)) {
      names += (names.empty() ? "\"" : ", \"") + name + "\"";
    }
  }
  return make_error(
      ErrorCode::kInvalidArgument, "--intent {}: no model is named \"{}\": {}", text,
      text.substr(0, equals),
      names.empty() ? "give a single MODEL its intent without a name" : "the models are " + names);
}

}  // namespace

void add_model_setting(CLI::App& app, ModelSetting& setting) {
  add_model_options(app, setting.model);
  app.get_option("MODEL")->required(false);
  app.option_defaults()->group("Model");
  app.add_option(
         "--served-model-name", setting.served_names,
         "Name by which clients may call the model (default its name on the hub, or the path's "
         "last part). May be repeated")
      ->type_name("NAME");
  app.add_option("--sleep-idle-seconds", setting.sleep_idle_s,
                 "Give the model's weights and KV cache back after so many seconds without a "
                 "request; the next one loads it again. 0 is never")
      ->check(whole_number(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--priority", setting.priority,
                 "Priority of the model on CPUs that several models share: while one of priority 4 "
                 "has requests, each one of priority 1 computes for at most a quarter of the time. "
                 "Models of equal priority do not wait for each other")
      ->check(whole_number(1, kMostPriority))
      ->capture_default_str();
  app.add_option("--max-num-queued-reqs", setting.max_queued,
                 "Most requests that wait in addition to --max-num-seqs; more are answered 429")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str()
      ->group("Batching");
  add_intent_options(app, setting.intent);
  add_fleet_options(app, setting.fleet);
  add_morph_options(app, setting.morph);
  app.option_defaults()->group("Answers");
  app.add_option("--tool-call-parser", setting.tool_call_parser,
                 "Format in which the model writes tool calls; auto follows its chat template")
      ->type_name("FORMAT")
      ->check(one_of({"auto", "hermes", "llama3_json", "mistral", "qwen3_coder", "glm45", "glm4",
                      "granite", "command", "none"}))
      ->capture_default_str();
  app.add_option("--pooling", setting.pooling,
                 "Make an embedding from the mean of all tokens or from the last one")
      ->check(one_of({"mean", "last"}))
      ->capture_default_str();
  app.add_option("--grammar-memory", setting.grammar_memory,
                 "Bound for the compiled schemas and patterns of structured output and their token "
                 "masks, in addition to --device-memory; the least recently used are dropped")
      ->type_name("SIZE")
      ->capture_default_str();
}

Result<std::vector<ModelSetting>> model_settings(const ModelSetting& common,
                                                 const std::vector<std::string>& texts,
                                                 const std::string& path) {
  if (!common.served_names.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--served-model-name {}: several models have the names that --model and "
                      "--models give them",
                      common.served_names.front());
  }
  std::vector<ModelSetting> settings;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    ModelSetting setting = common;
    setting.name = text.substr(0, equals);
    setting.model.model = equals == text.npos ? "" : text.substr(equals + 1);
    if (setting.name.empty() || setting.model.model.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--model {}: write NAME=MODEL; a single model is served by protean serve "
                        "MODEL",
                        text);
    }
    settings.push_back(std::move(setting));
  }
  if (!path.empty()) {
    ModelSetting shown;
    CLI::App app;
    add_table_flags(app, shown);
    const auto tables = read_tables("--models", path, app);
    if (!tables.ok()) {
      return tables.error();
    }
    for (const TableArguments& table : *tables) {
      auto setting = setting_of(common, table, path);
      if (!setting.ok()) {
        return setting.error();
      }
      settings.push_back(*std::move(setting));
    }
  }
  if (const Status unique = check_names(settings); !unique.ok()) {
    return unique.error();
  }
  return settings;
}

Result<std::vector<std::string>> take_named_intents(ModelSetting& common) {
  std::vector<std::string> named;
  std::istringstream lines(std::exchange(common.intent.intent, ""));
  for (std::string line; std::getline(lines, line);) {
    const bool has_name = line.find('=') != line.npos && !parse_intent(line).ok();
    if (has_name) {
      named.push_back(line);
      continue;
    }
    if (!common.intent.intent.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--intent {} and --intent {} are both for all models: give one, or each "
                        "model its own as NAME=INTENT",
                        common.intent.intent, line);
    }
    common.intent.intent = line;
  }
  return named;
}

Status name_intents(const std::vector<std::string>& named, std::vector<ModelSetting>& settings) {
  std::set<const ModelSetting*> given;
  for (const std::string& text : named) {
    ModelSetting* owner = nullptr;
    std::string intent;
    for (ModelSetting& setting : settings) {
      for (const std::string& name : given_names(setting)) {
        if (text.starts_with(name + "=")) {
          owner = &setting;
          intent = text.substr(name.size() + 1);
        }
      }
    }
    if (owner == nullptr) {
      return unnamed_intent(text, settings);
    }
    if (const auto known = parse_intent(intent); !known.ok()) {
      return make_error(ErrorCode::kInvalidArgument, "--intent {}: {}", text,
                        known.error().message);
    }
    if (!given.insert(owner).second) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--intent {}: this model has the intent {} already: give one", text,
                        owner->intent.intent);
    }
    owner->intent.intent = intent;
  }
  return {};
}

Result<ModelSetting> model_setting(const ModelSetting& common, const std::string& name,
                                   const boost::json::object& fields) {
  if (const Status named = check_model(fields); !named.ok()) {
    return named.error();
  }
  ModelSetting plain = common;  // what belongs to one model only is not common
  plain.model.model.clear();
  plain.model.name.clear();
  plain.served_names.clear();
  CLI::App app;
  add_table_flags(app, plain);
  boost::json::object flags = fields;
  flags.erase("name");
  const auto arguments = read_flags(flags, app);
  if (!arguments.ok()) {
    return arguments.error();
  }
  return setting_of(plain, name, *arguments);
}

}  // namespace protean
