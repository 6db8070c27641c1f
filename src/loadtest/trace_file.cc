#include "loadtest/trace_file.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace protean::loadtest {
namespace {

namespace fs = std::filesystem;

Result<std::string> read_file(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) {
    return make_error(ErrorCode::kNotFound, "{} is not a readable file", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.good() && !file.eof()) {
    return make_error(ErrorCode::kNotFound, "{} cannot be read", path.string());
  }
  return std::move(text).str();
}

// Reads the clients of a folder, ordered by name.
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
                      "{}: the folder has no *-trace.csv; a folder must be a ServeGen trace",
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

}  // namespace

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

}  // namespace protean::loadtest
