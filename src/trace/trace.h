#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace protean {

enum class TraceFormat {
  kAzure,               // CSV: TIMESTAMP,ContextTokens,GeneratedTokens (2023 and 2024)
  kBurstGpt,            // CSV: Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
  kBurstGptAggregates,  // JSON: tokens/s for each minute, requests and tokens for each day
  kMooncake,            // JSON lines: timestamp, input_length, output_length, hash_ids
  kLengths,    // CSV without times: num_prefill_tokens,num_decode_tokens,... (Sarathi, Vidur)
  kRecording,  // JSON lines: what a dashboard of Protean recorded
  kServeGen,   // a folder with one pair of *-trace.csv and *-dataset.json for each client
};
std::string_view to_string(TraceFormat format);

struct TraceRequest {
  TimeNs at_ns = 0;  // since the first request of the trace
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::vector<std::int64_t> prefix_blocks;  // Mooncake's hash_ids: equal ids mean equal tokens
};

// The distribution of a length. `cumulative` has a probability for each length and ends at 1.
struct LengthHistogram {
  std::vector<std::int64_t> lengths;
  std::vector<double> cumulative;
};

// The distribution of the time between two arrivals.
enum class GapDistribution { kGamma, kWeibull };

// A time in which requests arrive at one rate, with gaps of one distribution. The rate gives the
// distribution its scale.
struct RateWindow {
  TimeNs at_ns = 0;
  TimeNs duration_ns = 0;
  double requests_per_s = 0;
  GapDistribution gaps = GapDistribution::kGamma;
  double shape_parameter = 1;  // 1 with kGamma is a Poisson process
};
struct LengthWindow {
  TimeNs at_ns = 0;
  LengthHistogram input;
  LengthHistogram output;
};

// One client of a trace that states rates instead of requests. Windows are in order of time.
struct ClientProcess {
  std::string name;
  std::vector<RateWindow> rates;
  std::vector<LengthWindow> lengths;  // empty if the trace states no lengths
};

// A parsed trace. It has either requests, or clients to sample requests from.
struct Trace {
  TraceFormat format = TraceFormat::kAzure;
  std::vector<TraceRequest> requests;  // in order of time
  std::vector<ClientProcess> clients;
  std::vector<std::string> notes;  // for readers of results: rows were left out, or sorted
};
bool has_arrivals(const Trace& trace);
bool has_lengths(const Trace& trace);

inline constexpr std::int64_t kMooncakeBlockTokens = 512;

// Recognises the format of a trace file and parses its text. Errors name the file (`name`) and the
// line. A ServeGen trace is a folder: parse_servegen_client() parses the files of one client.
Result<Trace> parse_trace(std::string_view text, std::string_view name);

// The texts of the two files of one ServeGen client.
struct ServeGenTexts {
  std::string name;          // the client's
  std::string trace_name;    // for errors
  std::string trace;         // CSV without header: start s, requests/s, CV, shape, two parameters
  std::string dataset_name;  // for errors
  std::string dataset;       // JSON: start s -> input_tokens and output_tokens, "{length: share}"
};
Result<ClientProcess> parse_servegen_client(const ServeGenTexts& texts);

}  // namespace protean
