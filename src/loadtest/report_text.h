#pragma once

#include <string>

#include "loadtest/load_generator.h"
#include "loadtest/summary.h"

namespace protean::loadtest {

// What a run was, for people and for files: in the order it is shown.
struct RunDescription {
  std::string server;
  std::string endpoint;
  std::string model;
  std::string arrivals;  // "Poisson, 4 requests/s"
  std::string prompts;   // "random words, 1024 tokens in, 128 out"
  std::string date;      // ISO 8601, UTC
  std::uint64_t seed = 0;
  int max_concurrency = 0;
  double request_rate = 0;  // 0: of a trace; infinite: at once
  double burstiness = 1;
  Slo slo;
  std::vector<std::string> notes;
};

std::string table_of(const RunDescription& run, const Summary& summary);

// "12.3", "0.045", "1234": four digits that mean something.
std::string format_number(double value);

}  // namespace protean::loadtest
