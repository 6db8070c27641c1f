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
  kBurstGptAggregates,  // JSON: tokens a second in each minute, requests and tokens of each day
  kMooncake,            // JSON lines: timestamp, input_length, output_length, hash_ids
  kLengths,             // CSV: num_prefill_tokens,num_decode_tokens,... (Sarathi, Vidur); no times
  kServeGen,            // a folder of *-trace.csv and *-dataset.json, one pair for each client
};
std::string_view to_string(TraceFormat format);

struct TraceRequest {
  TimeNs at_ns = 0;  // from the first request of the trace
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::vector<std::int64_t> prefix_blocks;  // Mooncake's hash_ids: equal ids, equal tokens
};

// Lengths and how likely they are; likelihoods are cumulative and end at 1.
struct LengthHistogram {
  std::vector<std::int64_t> lengths;
  std::vector<double> cumulative;
};

enum class GapShape { kGamma, kWeibull };  // of the time between two arrivals

// `requests_per_s` for a while, with gaps of one distribution. Its scale follows from the rate.
struct RateWindow {
  TimeNs at_ns = 0;
  TimeNs duration_ns = 0;
  double requests_per_s = 0;
  GapShape shape = GapShape::kGamma;
  double shape_parameter = 1;  // gamma with 1: Poisson
};
struct LengthWindow {
  TimeNs at_ns = 0;
  LengthHistogram input;
  LengthHistogram output;
};

// A client to sample requests from. Windows are in order of time.
struct ClientProcess {
  std::string name;
  std::vector<RateWindow> rates;
  std::vector<LengthWindow> lengths;  // none: the trace does not tell them
};

// What a trace says: either requests, or processes to sample them from.
struct Trace {
  TraceFormat format = TraceFormat::kAzure;
  std::vector<TraceRequest> requests;  // in order of time
  std::vector<ClientProcess> clients;
  std::vector<std::string>
      notes;  // what a reader of the results should know: rows left out, sorted
};
bool has_arrivals(const Trace& trace);
bool has_lengths(const Trace& trace);

inline constexpr std::int64_t kMooncakeBlockTokens = 512;

// Parses the text of a trace file, whose format it finds out. `name` is for errors, which also name
// the line. A ServeGen trace is a folder of files: parse_servegen_client() parses those of a
// client.
Result<Trace> parse_trace(std::string_view text, std::string_view name);

// One ServeGen client from the texts of its two files.
struct ServeGenTexts {
  std::string name;          // of the client
  std::string trace_name;    // for errors
  std::string trace;         // CSV without header: start s, requests/s, CV, shape, its parameters
  std::string dataset_name;  // for errors
  std::string dataset;       // JSON: start s -> input_tokens, output_tokens, each "{length: share}"
};
Result<ClientProcess> parse_servegen_client(const ServeGenTexts& texts);

}  // namespace protean
