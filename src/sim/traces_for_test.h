#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "trace/trace.h"

namespace protean {

// The requests of a trace file; a failure of the test and none if the file cannot be parsed.
inline std::vector<TraceRequest> trace_from(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const auto trace = parse_trace(text.view(), path.string());
  EXPECT_TRUE(trace.ok()) << trace.error().message;
  return trace.ok() ? trace->requests : std::vector<TraceRequest>();
}

// Replays `trace` from its beginning again and again until there are `count` requests.
inline std::vector<TraceRequest> repeated(const std::vector<TraceRequest>& trace,
                                          std::size_t count) {
  std::vector<TraceRequest> requests;
  requests.reserve(count);
  TimeNs offset_ns = 0;
  for (std::size_t i = 0; requests.size() < count; ++i) {
    if (i == trace.size()) {
      i = 0;
      offset_ns += trace.back().at_ns;
    }
    requests.push_back(trace[i]);
    requests.back().at_ns += offset_ns;
  }
  return requests;
}

}  // namespace protean
