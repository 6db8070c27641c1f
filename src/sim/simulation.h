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
#include "sim/morph_model.h"
#include "trace/trace.h"

namespace protean {

struct SimulationConfig {
  EngineConfig engine;
  StepCost step_cost;
  std::uint64_t seed = 0;         // of prompts, drawn tokens and cancels
  int shared_prefix_tokens = 0;   // every prompt begins with the same so many tokens
  TimeNs ttft_slo_ns = -1;        // every request's deadline of its first token, if any
  double cancel_probability = 0;  // that a client leaves somewhere within its answer
  MorphCost morph_cost;           // where engine.morph is set
};

struct FinishedRequest {
  std::uint64_t request = 0;  // index into the trace + 1
  FinishReason reason = FinishReason::kFailed;
  RequestUsage usage;
  RequestTimes times;
};

// What the engine told of its form, whenever that had changed.
struct FormAt {
  TimeNs at_ns = 0;
  std::shared_ptr<const FormStatus> status;
};

struct SimulationReport {
  std::vector<FinishedRequest> finished;  // in order of their end
  std::vector<FormAt> forms;
  std::int64_t refused = 0;
  Observation final;  // after the last event
};

// Runs the production engine and scheduler over a trace in virtual time, steps taking as long as
// the cost model says. Same config and trace, same report, to the byte (invariant 6). A request
// wants as many tokens as the trace says; what exceeds max_model_len is clipped to it. Where forms
// change, it goes on until the last one is the first again.
SimulationReport simulate(const SimulationConfig& config, std::span<const TraceRequest> trace);

// One line per finished request: id, reason, tokens and times in ns.
std::string to_csv(const SimulationReport& report);
// One line per change of form: time in ns, layers per precision, KV blocks, swaps and failures.
std::string forms_to_csv(const SimulationReport& report);

}  // namespace protean
