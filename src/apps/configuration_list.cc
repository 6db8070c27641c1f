#include "apps/configuration_list.h"

#include <boost/json/array.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/plan_report.h"
#include "apps/version.h"
#include "cost/pruned_spec.h"
#include "cost/shards.h"
#include "model/profile_database.h"
#include "model/variant_file.h"
#include "replica/step_costs.h"

namespace protean {
namespace {

namespace json = boost::json;

bool matches(const PlannedLoad& load, const LoadFilter& wanted) {
  const auto is = [](int number, int asked) { return asked == 0 || number == asked; };
  return is(load.batch, wanted.batch) && is(load.prompt_tokens, wanted.prompt_tokens) &&
         is(load.output_tokens, wanted.output_tokens);
}

// True if a model of this shape can be divided so: the file may have been written by others.
bool is_legal(const ModelSpec& spec, const Configuration& one) {
  const bool power = one.tensor > 0 && (one.tensor & (one.tensor - 1)) == 0;
  const bool shares =
      one.tensor == 1 || (power && can_shard(pruned_spec(spec, one.pruning), one.tensor));
  return shares && one.stages >= 1 && one.stages <= spec.layers;
}

json::object shown_map(const MappedModel& model, const ConfigurationMapKey& key,
                       std::vector<MappedConfiguration> rows, const std::filesystem::path& folder) {
  std::erase_if(rows, [&](const auto& row) { return !is_legal(model.spec, row.configuration); });
  std::vector<EstimatedConfiguration> estimates;
  for (const MappedConfiguration& row : rows) {
    estimates.push_back({.configuration = row.configuration,
                         .latency = row.latency,
                         .memory = memory_of(model.spec, row.configuration, key.load),
                         .total_bytes = row.total_bytes});
  }
  const auto ratios = measured_ratios(model, estimates, folder);
  json::array shown;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    shown.push_back(estimate_json(estimates[i], model.spec.layers, ratios[i], rows[i].rests_on));
  }
  return {{"devices", key.devices},
          {"batch", key.load.batch},
          {"prompt_tokens", key.load.prompt_tokens},
          {"output_tokens", key.load.output_tokens},
          {"configurations", std::move(shown)}};
}

}  // namespace

Result<json::object> kept_configurations(const MappedModel& model, const LoadFilter& wanted,
                                         const std::filesystem::path& folder) {
  json::array maps;
  int left_out = 0;
  const auto directory = profile_directory({.directory = folder, .version = kVersion});
  if (ProfileDatabase::exists(directory)) {
    const auto database = ProfileDatabase::open(directory);
    if (!database.ok()) {
      return database.error();
    }
    const auto keys = (*database)->configuration_maps(model.identity, kVersion);
    if (!keys.ok()) {
      return keys.error();
    }
    for (const ConfigurationMapKey& key : *keys) {
      if (!matches(key.load, wanted)) {
        continue;
      }
      if (std::ssize(maps) == kMostShownMaps) {
        ++left_out;
        continue;
      }
      auto rows = (*database)->configurations(key);
      if (!rows.ok()) {
        return rows.error();
      }
      maps.push_back(shown_map(model, key, *std::move(rows), folder));
    }
  }
  return json::object{{"maps", std::move(maps)}, {"left_out", left_out}};
}

ListConfigurations configurations_of_files(std::filesystem::path model, ModelSpec spec,
                                           std::filesystem::path folder) {
  return [model = std::move(model), spec = std::move(spec),
          folder = std::move(folder)](const LoadFilter& wanted) -> Result<json::object> {
    const auto identity = identify_model(model, spec);
    if (!identity.ok()) {
      return identity.error();
    }
    const std::string name = identity->hex();
    return kept_configurations({name, spec}, wanted, folder);
  };
}

}  // namespace protean
