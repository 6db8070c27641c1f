#include "loadtest/server_metrics.h"

#include <algorithm>

#include "trace/text.h"

namespace protean::loadtest {
namespace {

// A line "name{labels} value [time]". A label's value may contain braces and escaped quotes.
struct Sample {
  std::string_view name;
  double value = 0;
};
std::optional<Sample> read_sample(std::string_view line) {
  const std::size_t name_end = line.find_first_of("{ \t");
  if (line.empty() || line.front() == '#' || name_end == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view name = line.substr(0, name_end);
  std::size_t at = name_end;
  if (line[at] == '{') {
    bool quoted = false;
    for (++at; at < line.size() && (quoted || line[at] != '}'); ++at) {
      if (quoted && line[at] == '\\') {
        ++at;
      } else if (line[at] == '"') {
        quoted = !quoted;
      }
    }
    ++at;
  }
  if (at >= line.size()) {
    return std::nullopt;
  }
  const std::string_view rest = trimmed(line.substr(at));
  const auto value = parse_number(rest.substr(0, rest.find_first_of(" \t")));
  return value ? std::optional(Sample{name, *value}) : std::nullopt;
}

}  // namespace

ServerMetrics parse_server_metrics(std::string_view text) {
  ServerMetrics found;
  double kv_engines = 0;
  std::optional<double> old_kv_use;
  double old_kv_engines = 0;
  const auto add = [](std::optional<double>& to, double value) { to = to.value_or(0) + value; };
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto sample = read_sample(line);
    if (!sample || !sample->name.starts_with("vllm:")) {
      continue;
    }
    const std::string_view name = sample->name.substr(5);
    if (name == "kv_cache_usage_perc") {
      add(found.kv_use, sample->value);
      ++kv_engines;
    } else if (name == "gpu_cache_usage_perc") {
      add(old_kv_use, sample->value);
      ++old_kv_engines;
    } else if (name == "num_requests_running") {
      add(found.running, sample->value);
    } else if (name == "num_requests_waiting") {
      add(found.waiting, sample->value);
    } else if (name == "time_to_first_token_seconds_sum") {
      add(found.ttft_sum_s, sample->value);
    } else if (name == "time_to_first_token_seconds_count") {
      add(found.ttft_count, sample->value);
    }
  }
  if (found.kv_use) {
    *found.kv_use /= kv_engines;
  } else if (old_kv_use) {
    found.kv_use = *old_kv_use / old_kv_engines;
  }
  return found;
}

bool has_any(const ServerMetrics& metrics) {
  return metrics.kv_use || metrics.running || metrics.waiting || metrics.ttft_count;
}

}  // namespace protean::loadtest
