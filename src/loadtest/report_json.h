#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "loadtest/report_text.h"

namespace protean::loadtest {

struct JsonDetail {
  bool requests = true;  // a record of each request; `protean bench compare` needs them
  bool itl = false;      // and each of its gaps
};
// The summary under the names that `vllm bench serve` gives it, at the top level.
std::string json_of(const RunDescription& description, const Summary& summary, const RunResult& run,
                    const JsonDetail& detail);

// What a run asked of its server, as its file describes it.
struct RecordedLoad {
  std::string endpoint;
  std::string arrivals;
  std::string prompts;
  std::string seed;
};

// What a comparison needs of a file that json_of() wrote.
struct RecordedRun {
  std::string label;  // model, server and when
  RecordedLoad load;
  double duration_s = 0;
  std::vector<RequestRecord> records;
  bool has_itl = false;
};
Result<RecordedRun> parse_recorded_run(std::string_view text, std::string_view name);

}  // namespace protean::loadtest
