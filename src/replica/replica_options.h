#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/units.h"
#include "cost/group_cost.h"
#include "engine/engine.h"
#include "engine/morph_config.h"
#include "fleet/balancing.h"
#include "fleet/grouping.h"
#include "fleet/router.h"
#include "fleet/scaling.h"
#include "model/variant_store.h"
#include "replica/fingerprint.h"
#include "replica/model_options.h"
#include "replica/shared_memory.h"
#include "replica/shared_turns.h"
#include "replica/sizing.h"
#include "worker/layer_pages.h"

namespace protean {

// How to build the replicas of a model, which are alike but for their memory (options_of).
struct ReplicaOptions {
  ModelOptions model;
  Sizing sizing;                           // the size of each replica
  std::optional<MorphConfig> morph;        // each replica's; nothing: forms never change
  std::shared_ptr<VariantStore> variants;  // source of weights if the form may change
  GroupCost cost;  // of steps on one device and on several; all 0: not known
  RouterPolicy router = RouterPolicy::kFirstToken;
  MigratePolicy migrate = MigratePolicy::kOff;
  ScalePolicy scale = ScalePolicy::kOff;
  DropPolicy drop = DropPolicy::kOff;
  int holds_at_once = 64;                    // see GroupConfig::steps_at_once
  TimeNs scaler_after_ns = 10 * kNsPerS;     // see GroupConfig
  TimeNs device_timeout_ns = 0;              // see Member
  std::shared_ptr<ModelTurns> turns = {};    // null: no other model has another priority
  std::shared_ptr<ModelMemory> memory = {};  // that it trades with other models; null: none
  std::int64_t most_pages = 0;  // pages that a device may have later, if more than in the sizing
};

// Returns true if the model may trade memory with others: a policy changes its form and its KV, and
// it is one replica. Replicas that may be joined count on each other's pages.
bool may_trade_memory(const ReplicaOptions& options);

// Returns true if the replicas may be joined and split again: there are several, on pages, of a
// model whose halves of a layer follow each other.
bool may_join(const ReplicaOptions& options);

// Returns the configuration of the engine that serves such a replica.
EngineConfig engine_config(const ReplicaOptions& options, const ModelSpec& spec);

// Returns the configuration of the engine that serves a group of such replicas with this form.
EngineConfig wide_engine_config(const ReplicaOptions& options, const ModelSpec& spec,
                                const Form& form);

// Returns how such replicas become groups, without the devices; nothing if they may not be joined.
std::optional<GroupConfig> group_config(const ReplicaOptions& options, const ModelSpec& spec);

// Returns what a fingerprint of the replica's model has to know: every precision that its layers
// have or may be lowered to.
FingerprintOptions fingerprint_options(const ReplicaOptions& options);

// Returns a function that reads parts of a model from the store. It returns the store's remark.
ReadComponent read_from(std::shared_ptr<VariantStore> variants);

}  // namespace protean
