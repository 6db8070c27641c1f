#pragma once

#include <string>

#include "loadtest/load_generator.h"
#include "loadtest/summary.h"

namespace protean::loadtest {

// Describes a run, for the readers of its results.
struct RunDescription {
  std::string server;
  std::string endpoint;
  std::string model;
  std::string arrivals;  // "Poisson, 4 requests/s"
  std::string prompts;   // "random words, 1024 tokens in, 128 out"
  std::string date;      // ISO 8601, UTC
  std::uint64_t seed = 0;
  int max_concurrency = 0;
  double request_rate = 0;  // 0 if arrivals are a trace's; infinite if all are due at once
  double burstiness = 1;
  Slo slo;
  std::vector<std::string> notes;
};

std::string table_of(const RunDescription& run, const Summary& summary);

// Returns `value` with about four significant digits: "12.35", "0.0450", "1234".
std::string format_number(double value);

}  // namespace protean::loadtest
