#pragma once

// One parser for each trace format. Times are those of the file; parse_trace() makes the first one
// zero. `name` is the file's name in errors.

#include <string_view>

#include "base/result.h"
#include "trace/trace.h"

namespace protean {

Result<Trace> parse_azure(std::string_view csv, std::string_view name);
Result<Trace> parse_burstgpt(std::string_view csv, std::string_view name);
Result<Trace> parse_lengths(std::string_view csv, std::string_view name);
Result<Trace> parse_mooncake(std::string_view lines, std::string_view name);
// Reads the requests of a recording. Its other lines, about forms and load, are passed over.
Result<Trace> parse_recording(std::string_view lines, std::string_view name);
Result<Trace> parse_burstgpt_aggregates(std::string_view text, std::string_view name);

// Fails if a window states millions of requests: a window is sampled whole, in memory.
Status check_windows(const ClientProcess& client, std::string_view name);

}  // namespace protean
