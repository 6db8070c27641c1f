#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "contract/groups.h"
#include "contract/observation.h"
#include "contract/request.h"
#include "cost/group_cost.h"
#include "cost/step_time.h"
#include "engine/engine.h"
#include "fleet/balancing.h"
#include "fleet/regrouping.h"
#include "sim/device_timeline.h"
#include "sim/morph_model.h"
#include "trace/trace.h"

namespace protean {

// An operator's wish and when it is sent: for the form of replica 0, or for groups.
struct WishAt {
  TimeNs at_ns = 0;
  std::variant<FormWish, GroupWish> wish;
};

// The devices of a replica, and its engine; nothing: the engine of all replicas.
struct SimulatedReplica {
  MorphModel::Devices devices;
  std::optional<EngineConfig> engine = {};
};

struct SimulationConfig {
  EngineConfig engine;  // each replica's engine
  int replicas = 1;
  Dispatch dispatch;
  StepCost step_cost;      // what steps take; engine.step_cost, if known, is what engines believe
  std::uint64_t seed = 0;  // seed of prompts, output tokens and cancels
  // For tests of prefix caches; no flag sets it: length of the prefix that all prompts share.
  int shared_prefix_tokens = 0;
  TimeNs ttft_slo_ns = -1;        // deadline of each first token after arrival; negative: none
  double cancel_probability = 0;  // share of clients that cancel at a random time of the answer
  int max_concurrency = 0;  // most requests at a time: the next one waits for an end; 0: no bound
  int max_outstanding = 0;  // requests that arrive beyond it are refused; 0: no bound
  double prefix_block_tokens = 0;  // tokens of one of the trace's prefix_blocks; 0: unused
  bool keep_token_times = false;   // FinishedRequest::tokens_ns
  // For tests of migration; no flag sets it: share of arrivals at which up to 8 requests that
  // decode move from one random replica to another.
  double migration_probability = 0;
  double block_copy_us = 100;  // time to copy one KV block to another replica
  // Requests name no max_tokens, so that each may fill the context; a stop token ends the answer
  // after the trace's number of tokens.
  bool open_answers = false;
  std::vector<WishAt> wishes;  // in order of time
  MorphCost morph_cost;        // used if engine.morph is set
  // What each replica has: needed if it has several devices. If replicas are unequal, one entry for
  // each; without an engine of its own, a replica has `engine`. Without any, devices follow from
  // engine.morph, else a replica has one.
  std::vector<SimulatedReplica> each;
  // What steps cost on several devices: needed if a replica has several, or if groups may form.
  // Without it, every device takes what step_cost says.
  std::optional<GroupCost> group_cost;
  // How replicas become groups, without GroupConfig::devices; needs engine.morph.
  std::optional<GroupConfig> groups;
};

struct FinishedRequest {
  std::uint64_t request = 0;  // place in the trace, from 1
  ReplicaId replica;          // in which it ended
  FinishReason reason = FinishReason::kFailed;
  RequestUsage usage;
  RequestTimes times;
  std::vector<TimeNs> tokens_ns;  // when each token came, if they are kept
};

// How many replicas a fleet wants from this time on.
struct ReplicasWantedAt {
  TimeNs at_ns = 0;
  int wanted = 0;
};

// A request that was not accepted.
struct RefusedRequest {
  std::uint64_t request = 0;
  TimeNs at_ns = 0;
};

// A status of a replica's form, which its engine reports after each change.
struct FormAt {
  TimeNs at_ns = 0;
  ReplicaId replica;
  std::shared_ptr<const FormStatus> status;
};

struct SimulationReport {
  std::vector<FinishedRequest> finished;  // ordered by end
  std::vector<FormAt> forms;
  std::shared_ptr<const GroupsStatus> groups;     // after the last change; null: no groups may form
  std::vector<RegroupRecord> changes;             // changes of groups, ordered by end
  DeviceUse pipelines;                            // use of replicas and groups with several stages
  std::vector<ReplicasWantedAt> replicas_wanted;  // the first one at the first event
  std::int64_t kv_bytes_exchanged = 0;            // KV moved while groups formed and split
  std::vector<RefusedRequest> refusals;
  std::int64_t refused = 0;           // refusals.size()
  std::vector<Observation> replicas;  // after the last event
  Observation final;                  // all replicas together
};

// Runs the production fleet, with its router, engines and schedulers, over a trace in virtual time.
// The cost model predicts what a step takes; replicas compute at the same time. The same config and
// trace give the same report, byte for byte (invariant 6). Lengths of requests are the trace's,
// limited to max_model_len. If engine.morph is set, the simulation ends when all requests have
// ended and no engine has a deadline for another change of form.
SimulationReport simulate(const SimulationConfig& config, std::span<const TraceRequest> trace);

}  // namespace protean
