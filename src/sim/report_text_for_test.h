#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>

#include "contract/form.h"
#include "sim/simulation.h"

namespace protean {

// Reports as text, so that two runs compare.

// Returns one line for each finished request.
inline std::string to_csv(const SimulationReport& report) {
  std::string csv =
      "request,replica,reason,prompt_tokens,cached_tokens,output_tokens,preemptions,"
      "arrived_ns,scheduled_ns,first_token_ns,finished_ns\n";
  for (const FinishedRequest& request : report.finished) {
    fmt::format_to(std::back_inserter(csv), "{},{},{},{},{},{},{},{},{},{},{}\n", request.request,
                   request.replica.value, static_cast<int>(request.reason),
                   request.usage.prompt_tokens, request.usage.cached_tokens,
                   request.usage.output_tokens, request.usage.preemptions, request.times.arrived_ns,
                   request.times.scheduled_ns, request.times.first_token_ns,
                   request.times.finished_ns);
  }
  return csv;
}

// Returns one line for each change of groups.
inline std::string groups_to_csv(const SimulationReport& report) {
  std::string csv =
      "replicas,by,together,asked_ns,begun_ns,settled_ns,done_ns,steps,blocks_moved,preempted,"
      "recomputed,failure\n";
  for (const RegroupRecord& change : report.changes) {
    std::string replicas;
    for (const ReplicaId replica : change.replicas) {
      replicas += fmt::format("{}{}", replicas.empty() ? "" : " ", replica.value);
    }
    fmt::format_to(std::back_inserter(csv), "{},{},{},{},{},{},{},{},{},{},{},{}\n", replicas,
                   to_string(change.by), change.together ? 1 : 0, change.asked_ns, change.begun_ns,
                   change.settled_ns, change.done_ns, change.steps, change.blocks_moved,
                   change.preempted, change.recomputed, change.failure);
  }
  return csv;
}

// Returns one line for each change of a form.
inline std::string forms_to_csv(const SimulationReport& report) {
  std::string csv = "at_ns,replica,layers,kv_blocks,swaps_down,swaps_up,failures\n";
  for (const auto& [at_ns, replica, status] : report.forms) {
    fmt::format_to(std::back_inserter(csv), "{},{},{},{},{},{},{}\n", at_ns, replica.value,
                   precision_label(status->form), status->form.kv.blocks, status->swaps_down_total,
                   status->swaps_up_total, status->failures_total);
  }
  return csv;
}

}  // namespace protean
