#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/model_setting.h"
#include "apps/plan_report.h"
#include "base/result.h"
#include "replica/harvest.h"
#include "replica/model_files.h"
#include "replica/replica.h"
#include "server/server.h"

namespace protean {

// A model whose files are open and whose memory is chosen. Its weights are still on disk.
struct OpenModel {
  ModelSetting asked;                        // as the user stated it
  ModelSetting setting;                      // the same with what its intent chose
  IntentPlan plan;                           // that chose how it is served; empty without an intent
  std::shared_ptr<const PlanReport> report;  // of this plan; null without an intent
  double load_s = 0;                         // time that loading its weights took last
  std::optional<FormWish> rest;  // the form that an intent gave it in place; nothing: as opened
  std::unique_ptr<ModelFiles> files;
  ReplicaOptions replica;
  std::unique_ptr<Inbox> inbox;
  HostedModel hosted;  // refers to the files and the inbox
};

// How models are opened.
struct OpenOptions {
  bool may_morph = false;  // forms may change even if no policy changes them
  bool may_move = false;   // models with an intent compute on the CPUs of their devices alone
  Harvest harvest = {};    // of fingerprints, while other models serve
  std::vector<double> device_loads = {};  // of the devices for intents; empty: they are idle
  std::vector<int> lost_devices = {};     // that have failed
  std::shared_ptr<const PlanReport> chosen = nullptr;  // the plan of a move; null: an intent plans
  const OpenModel* served = nullptr;  // its files are to be those of this model; null: of any
  std::shared_ptr<SharedTurns> turns = nullptr;  // of all models of a server; null: they never wait
  std::shared_ptr<SharedMemory> memory =
      nullptr;  // of all models of a server; null: none is traded
};

// Finds and opens the models, logs what they are, and gives each a share of the free memory, one
// after the other: what one takes is not there for the next. A share is an equal part of what is
// free, or all of it if the model does not fit an equal part. Errors name all models that cannot be
// opened.
Result<std::vector<OpenModel>> open_models(std::vector<ModelSetting> settings,
                                           const OpenOptions& options);

// Opens a model while others are served. It may take half of `free_bytes`, or all of them if it
// does not fit that. Its files must be on disk: nothing is fetched.
Result<OpenModel> open_further_model(ModelSetting setting, const OpenOptions& options,
                                     std::int64_t free_bytes);

// Opens a model once more for another intent, while `before` serves.
Result<OpenModel> open_for_intent(const OpenModel& before, const IntentWish& wish,
                                  const OpenOptions& options, std::int64_t free_bytes);

// True if both serve the model in the same way on the same CPUs, but for the size of the KV cache.
bool same_configuration(const OpenModel& one, const OpenModel& other);

// Returns how the engine of `before` can serve the model as `after` would. Fails with the reason if
// it cannot do so in place, with `free_bytes` more than it has.
Result<FormWish> in_place(const OpenModel& before, const OpenModel& after, std::int64_t free_bytes);

// Returns the precisions that a model's layers may have without being loaded again.
std::vector<Precision> morphs_to(const OpenModel& model);

// The memory that a model's devices take as it was opened, and that which they have now or are
// loaded with when it wakes.
std::int64_t memory_of(const OpenModel& model);
std::int64_t memory_now(const OpenModel& model);

// Returns the name that logs use for the model.
const std::string& name_of(const OpenModel& model);

// Learns what a model's steps cost, if that is more than a nominal cost tells, from a fingerprint
// on the first device. Devices that share a step take what it says of their parts.
void learn_costs(OpenModel& model, const Harvest& harvest = {});

// Loads a model in its form and starts its replicas, which pack missing variants in the background
// if a policy may use them. `model` and `sink` outlive the replicas.
Result<std::unique_ptr<Replicas>> start_replicas(OpenModel& model, TokenSink& sink,
                                                 const LoadHooks& hooks = {});

// Returns the error of several models that failed. `count` is the number of all models.
Error error_of_models(const std::vector<Error>& errors, std::size_t count);

}  // namespace protean
