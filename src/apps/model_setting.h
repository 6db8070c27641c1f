#pragma once

#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "apps/fleet_options.h"
#include "apps/intent_options.h"
#include "apps/morph_options.h"
#include "base/result.h"
#include "replica/model_options.h"

namespace protean {

// How one of a server's models is to be served, as a user states it.
struct ModelSetting {
  std::string name;  // the name that the user gives the model; empty: its own
  ModelOptions model;
  MorphOptions morph;
  FleetOptions fleet;
  IntentOptions intent;  // without one the other options say how to serve
  std::vector<std::string> served_names;
  int max_queued = 1024;
  int sleep_idle_s = 0;  // 0: the model never sleeps
  int priority = 1;      // see TimeShare
  std::string grammar_memory = "256MiB";
  std::string tool_call_parser = "auto";
  std::string pooling = "mean";
};

// Adds MODEL, which may be left out, and the flags that may differ among a server's models.
void add_model_setting(CLI::App& app, ModelSetting& setting);

// Returns a setting for each NAME=MODEL of `texts`, then for each table of the TOML file `path`, if
// it is not empty. A setting is `common`, changed by what its table says. Fails if two models share
// a name.
Result<std::vector<ModelSetting>> model_settings(const ModelSetting& common,
                                                 const std::vector<std::string>& texts,
                                                 const std::string& path);

// Takes from the lines of `common`'s intent those that are NAME=INTENT, and returns them. What is
// left is the intent of all models. Fails if that is more than one line.
Result<std::vector<std::string>> take_named_intents(ModelSetting& common);

// Gives models the intents of take_named_intents(). Fails if no model has a name, if one has two
// intents, or if an intent is unknown.
Status name_intents(const std::vector<std::string>& named, std::vector<ModelSetting>& settings);

// Returns the setting of a model that a JSON object describes: "model" and the flags that differ
// from `common`, as in a table of such a file.
Result<ModelSetting> model_setting(const ModelSetting& common, const std::string& name,
                                   const boost::json::object& fields);

}  // namespace protean
