#include "loadtest/trace.h"

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <sstream>

#include "loadtest/trace_rows.h"
#include "loadtest/trace_text.h"

namespace protean::loadtest {
namespace {

namespace fs = std::filesystem;

Result<std::string> read_file(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) {
    return make_error(ErrorCode::kNotFound, "{} is no file that can be read", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.good() && !file.eof()) {
    return make_error(ErrorCode::kNotFound, "{} cannot be read", path.string());
  }
  return std::move(text).str();
}

// The clients of a folder, in the order of their names.
Result<Trace> read_servegen(const fs::path& folder) {
  static constexpr std::string_view kTraceEnd = "-trace.csv";
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    std::string name = at->path().filename().string();
    if (name.ends_with(kTraceEnd)) {
      names.push_back(name.substr(0, name.size() - kTraceEnd.size()));
    }
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) {
    return make_error(ErrorCode::kNotFound,
                      "{}: a folder is read as ServeGen clients, and it holds no *-trace.csv",
                      folder.string());
  }
  Trace trace{.format = TraceFormat::kServeGen};
  for (const std::string& name : names) {
    const fs::path arrivals = folder / (name + std::string(kTraceEnd));
    const fs::path lengths = folder / (name + "-dataset.json");
    auto arrivals_text = read_file(arrivals);
    auto lengths_text = read_file(lengths);
    if (!arrivals_text.ok() || !lengths_text.ok()) {
      return arrivals_text.ok() ? lengths_text.error() : arrivals_text.error();
    }
    auto client = parse_servegen_client({.name = name,
                                         .trace_name = arrivals.string(),
                                         .trace = *std::move(arrivals_text),
                                         .dataset_name = lengths.string(),
                                         .dataset = *std::move(lengths_text)});
    if (!client.ok()) {
      return client.error();
    }
    trace.clients.push_back(*std::move(client));
  }
  return trace;
}

// Sorts by time and makes the first request the start.
void normalise_times(Trace& trace) {
  std::vector<TraceRequest>& requests = trace.requests;
  const auto by_time = [](const TraceRequest& a, const TraceRequest& b) {
    return a.at_ns < b.at_ns;
  };
  if (!std::is_sorted(requests.begin(), requests.end(), by_time)) {
    trace.notes.emplace_back("the trace was not in order of time and has been sorted");
    std::stable_sort(requests.begin(), requests.end(), by_time);
  }
  const TimeNs first_ns = requests.empty() ? 0 : requests.front().at_ns;
  for (TraceRequest& request : requests) {
    request.at_ns -= first_ns;
  }
}

// Whole tokens of text that tell a CSV header.
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
      "{}: line 1: {} is the beginning of no known trace. Known: Azure CSV "
      "(TIMESTAMP,ContextTokens,"
      "GeneratedTokens), BurstGPT CSV (Timestamp,Model,Request tokens,Response tokens,...) and its "
      "aggregates (JSON with week1_min), Mooncake JSON lines (timestamp, input_length, "
      "output_length, hash_ids), Sarathi or Vidur CSV (num_prefill_tokens,num_decode_tokens,...), "
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

Result<Trace> read_trace(const fs::path& path) {
  std::error_code failed;
  if (fs::is_directory(path, failed)) {
    return read_servegen(path);
  }
  const auto text = read_file(path);
  if (!text.ok()) {
    return text.error();
  }
  return parse_trace(*text, path.string());
}

Result<Trace> parse_trace(std::string_view text, std::string_view name) {
  auto trace = parse_known(text, name);
  if (!trace.ok()) {
    return trace;
  }
  if (trace->requests.empty() && trace->clients.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: there is no request in it", name);
  }
  normalise_times(*trace);
  return trace;
}

}  // namespace protean::loadtest
