#include "trace/trace.h"

#include <algorithm>

#include "trace/formats.h"
#include "trace/text.h"

namespace protean {
namespace {

// Sorts requests by time and subtracts the time of the first one from all.
void normalise_times(Trace& trace) {
  std::vector<TraceRequest>& requests = trace.requests;
  const auto by_time = [](const TraceRequest& a, const TraceRequest& b) {
    return a.at_ns < b.at_ns;
  };
  if (!std::is_sorted(requests.begin(), requests.end(), by_time)) {
    trace.notes.emplace_back("the trace was not sorted by time; it was sorted");
    std::stable_sort(requests.begin(), requests.end(), by_time);
  }
  const TimeNs first_ns = requests.empty() ? 0 : requests.front().at_ns;
  for (TraceRequest& request : requests) {
    request.at_ns -= first_ns;
  }
}

// Returns true if a CSV header has all of `columns`.
bool has_columns(std::string_view header, std::initializer_list<std::string_view> columns) {
  const auto fields = split_csv(header);
  return std::all_of(columns.begin(), columns.end(), [&](std::string_view column) {
    return std::find(fields.begin(), fields.end(), column) != fields.end();
  });
}

Result<Trace> parse_known(std::string_view text, std::string_view name) {
  std::string_view first = text;
  if (first.starts_with("\xef\xbb\xbf")) {
    first.remove_prefix(3);
  }
  const std::size_t start = std::min(first.find_first_not_of(" \t\r\n"), first.size());
  first = first.substr(start);
  first = trimmed(first.substr(0, first.find('\n')));
  if (first.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: the file is empty", name);
  }
  if (first.starts_with("{\"protean_recording\"")) {
    return parse_recording(text, name);
  }
  if (first.starts_with('{')) {
    const bool line_of_mooncake = first.find("\"timestamp\"") != std::string_view::npos &&
                                  first.find("\"week1_min\"") == std::string_view::npos;
    return line_of_mooncake ? parse_mooncake(text, name) : parse_burstgpt_aggregates(text, name);
  }
  if (has_columns(first, {"TIMESTAMP", "ContextTokens", "GeneratedTokens"})) {
    return parse_azure(text, name);
  }
  if (has_columns(first, {"Timestamp", "Request tokens", "Response tokens"})) {
    return parse_burstgpt(text, name);
  }
  if (has_columns(first, {"num_prefill_tokens", "num_decode_tokens"})) {
    return parse_lengths(text, name);
  }
  return make_error(
      ErrorCode::kCorrupt,
      "{}: line 1: {} is not the first line of a known trace format. Known: Azure CSV "
      "(TIMESTAMP,ContextTokens,"
      "GeneratedTokens), BurstGPT CSV (Timestamp,Model,Request tokens,Response tokens,...) and its "
      "aggregates (JSON with week1_min), Mooncake JSON lines (timestamp, input_length, "
      "output_length, hash_ids), recordings of Protean's dashboard, Sarathi or Vidur CSV "
      "(num_prefill_tokens,num_decode_tokens,...), "
      "or a folder of ServeGen clients (*-trace.csv with *-dataset.json)",
      name, quoted_for_error(first));
}

}  // namespace

std::string_view to_string(TraceFormat format) {
  switch (format) {
    case TraceFormat::kAzure:
      return "Azure";
    case TraceFormat::kBurstGpt:
      return "BurstGPT";
    case TraceFormat::kBurstGptAggregates:
      return "BurstGPT aggregates";
    case TraceFormat::kMooncake:
      return "Mooncake";
    case TraceFormat::kLengths:
      return "lengths (Sarathi, Vidur)";
    case TraceFormat::kRecording:
      return "a recording of Protean";
    case TraceFormat::kServeGen:
      return "ServeGen";
  }
  return "unknown";
}

bool has_arrivals(const Trace& trace) {
  return trace.format != TraceFormat::kLengths;
}

bool has_lengths(const Trace& trace) {
  return trace.format != TraceFormat::kBurstGptAggregates;
}

Result<Trace> parse_trace(std::string_view text, std::string_view name) {
  auto trace = parse_known(text, name);
  if (!trace.ok()) {
    return trace;
  }
  if (trace->requests.empty() && trace->clients.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: the trace has no requests", name);
  }
  normalise_times(*trace);
  return trace;
}

}  // namespace protean
