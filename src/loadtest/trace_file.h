#pragma once

#include <filesystem>

#include "base/result.h"
#include "trace/trace.h"

namespace protean::loadtest {

// Reads a trace from a file of any known format or from a folder of ServeGen clients, and finds
// out its format. Errors name the file and the line.
Result<Trace> read_trace(const std::filesystem::path& path);

}  // namespace protean::loadtest
