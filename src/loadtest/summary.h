#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loadtest/load_generator.h"
#include "loadtest/request_record.h"
#include "loadtest/statistics.h"

namespace protean::loadtest {

enum class Measure { kTtft, kTpot, kItl, kE2e };
inline constexpr std::array<Measure, 4> kMeasures = {Measure::kTtft, Measure::kTpot, Measure::kItl,
                                                     Measure::kE2e};
std::string_view key_of(Measure measure);   // vLLM's names, for files: ttft, tpot, itl, e2el
std::string_view name_of(Measure measure);  // names for readers: TTFT, TPOT, ITL, E2E

// Returns the samples of a measure from completed requests: for ITL one for each gap, else one for
// each request. Requests with one output token have no TPOT.
std::vector<double> samples_of(Measure measure, const std::vector<RequestRecord>& records);

// Limits; 0 means none. A request meets them if it completed within all of them.
struct Slo {
  double ttft_ms = 0;
  double tpot_ms = 0;
  double e2e_ms = 0;
};
bool has_any(const Slo& slo);
Status set_goodput(Slo& slo, std::string_view text);  // "ttft:200", "tpot:50", "e2el:5000"

// Shares, from 0 to 1, of the requests that completed or failed.
struct SloAttainment {
  double ttft = 0;
  double tpot = 0;
  double e2e = 0;
  double all = 0;
  double goodput_requests_per_s = 0;
};

struct Summary {
  std::int64_t completed = 0;
  std::int64_t failed = 0;
  std::int64_t interrupted = 0;
  std::array<std::int64_t, kOutcomes> outcomes{};
  std::array<std::string, kOutcomes> examples;  // the first error message of each outcome
  double duration_s = 0;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t answers_with_usage = 0;  // answers whose tokens the server counted
  std::vector<double> percents;
  std::array<Distribution, 4> measures;  // in the order of kMeasures, in ms
  Distribution lag_ms;                   // how late requests were sent
  std::optional<SloAttainment> slo;
  double cpu_share = 0;                       // CPU time of the generator, as a share of one core
  std::optional<double> server_mean_ttft_ms;  // mean of the server's histogram over the run
};
double per_second(std::int64_t count, const Summary& summary);
// Says for readers whether the server or the generator counted the tokens.
std::string token_count_source(const Summary& summary);
// Returns sentences about what makes the results unreliable: failures, a late generator.
std::vector<std::string> warnings_of(const Summary& summary);

Summary summarise_run(const RunResult& run, const Slo& slo, const std::vector<double>& percents);

}  // namespace protean::loadtest
