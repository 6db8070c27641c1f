#pragma once

#include <filesystem>

#include "base/result.h"
#include "trace/trace.h"

namespace protean::loadtest {

// Reads a trace file of any known format, or a folder of ServeGen clients. Errors name the file and
// the line.
Result<Trace> read_trace(const std::filesystem::path& path);

}  // namespace protean::loadtest
