#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "contract/configuration.h"
#include "contract/form.h"
#include "cost/configuration_cost.h"
#include "model/step_cost_json.h"
#include "model/variant_file.h"

struct sqlite3;

namespace protean {

// What a cost model holds for. `cpu` names the processor and the instructions in use, `version` the
// program.
struct StepCostKey {
  ModelIdentity model;
  std::string cpu;
  int threads = 0;
  KvPrecision kv = KvPrecision::kBf16;
  bool small_pages = false;  // weights are on pages of less than 2 MiB, so that the form may change
  std::string version;
};

// What a configuration map holds for (iServe section 4.2): a model, the devices, and the load, as
// one version of the program estimates them.
struct ConfigurationMapKey {
  std::string model;    // ModelIdentity::hex(), or the name of a known model
  std::string devices;  // such as "8xA6000"
  PlannedLoad load;
  std::string version;
};

// The perplexity of a model as a configuration stores it, over that of the unchanged model.
struct MeasuredQuality {
  Configuration configuration;
  double perplexity_ratio = 0;
};

// What a configuration is estimated to take.
struct MappedConfiguration {
  Configuration configuration;
  Latency latency;
  std::int64_t block_bytes = 0;  // KV block of a layer on each device of its stage
  std::int64_t total_bytes = 0;  // memory that all devices take together
  std::string rests_on;          // where the estimate comes from
};

// The profiles of all models, in one SQLite file in the folder of packed weights. Any number of
// processes may use it; a writer waits for another one for some seconds. One thread per object.
class ProfileDatabase {
 public:
  static bool exists(const std::filesystem::path& directory);
  // The error of load() if there is no cost model of this key.
  static Error never_measured(const StepCostKey& key);

  // Opens `directory`/profiles.sqlite and creates it if it does not exist. A file that cannot be
  // written is opened to read. Fails with kCorrupt if it is not such a database.
  static Result<std::unique_ptr<ProfileDatabase>> open(const std::filesystem::path& directory);
  ~ProfileDatabase();
  ProfileDatabase(const ProfileDatabase&) = delete;
  ProfileDatabase& operator=(const ProfileDatabase&) = delete;

  // Saves a cost model. It replaces one of the same key, origin and precisions.
  Status save(const StepCostKey& key, const MachineStepCost& cost);

  // Returns a cost model that knows layers at all of these precisions and their LM heads: one of
  // the whole model in wall time, else a fingerprint, else one in processor time. Of several, the
  // last one saved. Sums among devices that it does not know are those of the next ones. Fails with
  // kNotFound if there is none.
  Result<MachineStepCost> load(const StepCostKey& key, std::span<const Precision> layers) const;

  // Keeps the time of one step of a fingerprint that is being measured. `step` names it.
  Status keep_step(const StepCostKey& key, std::string_view step, double us);
  // Returns the times that are kept of a step, the earliest first.
  Result<std::vector<double>> step_times(const StepCostKey& key, std::string_view step) const;
  // Forgets the times of all steps: the fingerprint is saved.
  Status forget_steps(const StepCostKey& key);

  // Saves a configuration map in place of the one of the same model, devices and load, whichever
  // version made it.
  Status save(const ConfigurationMapKey& key, std::span<const MappedConfiguration> configurations);

  // Returns a configuration map, in the order in which it was saved; empty if there is none.
  Result<std::vector<MappedConfiguration>> configurations(const ConfigurationMapKey& key) const;

  // Returns the keys of all configuration maps of a model that this version made, by load.
  Result<std::vector<ConfigurationMapKey>> configuration_maps(const std::string& model,
                                                              const std::string& version) const;

  // Keeps the perplexity of a model as a configuration stores it, over that of the unchanged model.
  // `model` is its ModelIdentity::hex(). How it is divided among devices does not matter.
  Status save_quality(const std::string& model, const Configuration& stored,
                      double perplexity_ratio);
  // Returns what was measured of a model. Configurations are of one device.
  Result<std::vector<MeasuredQuality>> qualities(const std::string& model) const;

 private:
  ProfileDatabase(sqlite3* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  Status prepare_tables();
  Error error(std::string_view doing) const;

  sqlite3* const handle_;
  const std::string name_;  // for messages
};

}  // namespace protean
