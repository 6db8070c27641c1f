#pragma once

#include <boost/json/object.hpp>
#include <vector>

#include "base/units.h"
#include "loadtest/request_record.h"
#include "loadtest/summary.h"
#include "sim/simulation.h"
#include "trace/trace.h"

namespace protean {

// Returns the records that a load generator would have made of the simulated requests.
loadtest::RunResult run_of(const SimulationReport& report,
                           const std::vector<TraceRequest>& requests);

// Returns what became of the form: swaps, and where tokens were drawn; empty if it never changes.
boost::json::object form_object(const SimulationReport& report, TimeNs elapsed_ns);

// Returns what became of groups: their changes with times in seconds, KV bytes exchanged, and the
// share of time in which devices of pipelines waited. Empty without groups and pipelines.
boost::json::object groups_object(const SimulationReport& report);

}  // namespace protean
