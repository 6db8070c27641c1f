#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "hub/model_name.h"
#include "hub/pull.h"
#include "hub/settings.h"
#include "replica/model_options.h"

namespace protean {

// Returns where a model lies on disk. A file or folder that exists is meant before anything else;
// otherwise the name of a model on a hub, ORG/NAME[:FILE][@REVISION], which is fetched if the cache
// lacks it. Ctrl-C ends the process; what was fetched stays. Run it before other threads exist.
Result<std::string> locate_model(const std::string& model);

// Does the same for options.model, and keeps the name that the user gave in options.name.
Status locate_model(ModelOptions& options);

// Does the same without fetching anything: fails if the model is neither on disk nor in the cache.
// May run at any time.
Status find_model(ModelOptions& options);

// Fetches a model from the hub even if the cache has it, which finds a newer commit of a branch.
Result<std::filesystem::path> pull_model(const hub::HubSettings& settings,
                                         const hub::ModelName& name);

// Returns the name of the model at a path: ORG/NAME for a snapshot in the hub's cache, otherwise
// the path's last component, without .gguf.
std::string model_name_at(const std::filesystem::path& path);

}  // namespace protean
