#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "contract/form.h"
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
  // last one saved. Fails with kNotFound if there is none.
  Result<MachineStepCost> load(const StepCostKey& key, std::span<const Precision> layers) const;

 private:
  ProfileDatabase(sqlite3* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  Status prepare_table();
  Error error(std::string_view doing) const;

  sqlite3* const handle_;
  const std::string name_;  // for messages
};

}  // namespace protean
