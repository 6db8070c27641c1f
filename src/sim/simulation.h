#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contract/observation.h"
#include "contract/request.h"
#include "cost/step_time.h"
#include "engine/engine.h"
#include "fleet/router.h"
#include "sim/morph_model.h"
#include "trace/trace.h"

namespace protean {

struct SimulationConfig {
  EngineConfig engine;  // of each replica
  int replicas = 1;
  RouterPolicy router = RouterPolicy::kFirstToken;
  StepCost step_cost;
  std::uint64_t seed = 0;         // seed of prompts, output tokens and cancels
  int shared_prefix_tokens = 0;   // length of the prefix that all prompts share
  TimeNs ttft_slo_ns = -1;        // deadline of each first token after arrival; negative: none
  double cancel_probability = 0;  // share of clients that cancel at a random time of the answer
  // Share of arrivals at which up to 8 requests that decode move from one random replica to
  // another.
  double migration_probability = 0;
  double block_copy_us = 100;  // time to copy one KV block to another replica
  MorphCost morph_cost;        // used if engine.morph is set
};

struct FinishedRequest {
  std::uint64_t request = 0;  // place in the trace, from 1
  ReplicaId replica;          // in which it ended
  FinishReason reason = FinishReason::kFailed;
  RequestUsage usage;
  RequestTimes times;
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
  std::int64_t refused = 0;
  std::vector<Observation> replicas;  // after the last event
  Observation final;                  // of all replicas together
};

// Runs the production fleet, with its router, engines and schedulers, over a trace in virtual time.
// The cost model predicts what a step takes; replicas compute at the same time. The same config and
// trace give the same report, byte for byte (invariant 6). Lengths of requests are the trace's,
// limited to max_model_len. If engine.morph is set, the simulation ends when all requests have
// ended and no engine has a deadline for another change of form.
SimulationReport simulate(const SimulationConfig& config, std::span<const TraceRequest> trace);

// Returns one line for each finished request: id, replica, reason, tokens and times in ns.
std::string to_csv(const SimulationReport& report);
// Returns one line for each change of form: time, replica, layers per precision, KV blocks, swaps,
// failures.
std::string forms_to_csv(const SimulationReport& report);

}  // namespace protean
