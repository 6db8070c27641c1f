#pragma once

#include <boost/json/object.hpp>
#include <filesystem>

#include "apps/measured_quality.h"
#include "base/result.h"
#include "server/residence.h"

namespace protean {

// Returns the estimates that plans of this version of the program kept of a model for loads of
// `wanted`, in the folder that --variant-cache names: a map for each load and devices, at most
// kMostShownMaps of them.
inline constexpr int kMostShownMaps = 32;
Result<boost::json::object> kept_configurations(const MappedModel& model, const LoadFilter& wanted,
                                                const std::filesystem::path& folder);

// Returns what lists them of the model in these files.
ListConfigurations configurations_of_files(std::filesystem::path model, ModelSpec spec,
                                           std::filesystem::path folder);

}  // namespace protean
