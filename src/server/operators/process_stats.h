#pragma once

#include <string>

namespace protean {

// Returns this process's memory, CPU time, open files and dropped log lines in Prometheus' text
// format, with the names that Prometheus client libraries use. Reads /proc.
std::string process_metrics();

}  // namespace protean
