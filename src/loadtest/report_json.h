#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "loadtest/report_text.h"

namespace protean::loadtest {

struct JsonDetail {
  bool requests = true;  // records of requests, which `protean bench compare` needs
  bool itl = false;      // every inter-token latency of these records
  std::string form;      // in a simulation: JSON of what became of the server's form
  std::string groups;    // in a simulation: JSON of the groups of replicas and their changes
};
// Returns one JSON object. Its summary has the names and the place that `vllm bench serve` gives
// it.
std::string json_of(const RunDescription& description, const Summary& summary, const RunResult& run,
                    const JsonDetail& detail);

// The load of a recorded run, in the words of its file.
struct RecordedLoad {
  std::string endpoint;
  std::string arrivals;
  std::string prompts;
  std::string seed;
};

// The part of a file written by json_of() that a comparison needs.
struct RecordedRun {
  std::string label;  // model, server and date
  RecordedLoad load;
  double duration_s = 0;
  std::vector<RequestRecord> records;
  bool has_itl = false;
};
Result<RecordedRun> parse_recorded_run(std::string_view text, std::string_view name);

}  // namespace protean::loadtest
