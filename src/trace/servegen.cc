#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <string>

#include "trace/formats.h"
#include "trace/text.h"
#include "trace/trace.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr double kMaxRate = 1e6;  // requests a second of one client

Result<RateWindow> rate_window(std::string_view line, const TracePlace& place) {
  const auto fields = split_csv(line);
  if (fields.size() != 6) {
    return trace_error(
        place,
        "the line has {} fields, a window has 6: start s, requests/s, CV, shape, two "
        "parameters",
        fields.size());
  }
  const auto at_s = parse_number(fields[0]);
  const auto rate = parse_number(fields[1]);
  if (!at_s || *at_s < 0 || *at_s > kMaxTraceSeconds) {
    return trace_error(place, "{} is not a time in seconds", quoted_for_error(fields[0]));
  }
  if (!rate || *rate < 0 || *rate > kMaxRate) {
    return trace_error(place, "{} is not a rate in requests/s (0 to 1e6)",
                       quoted_for_error(fields[1]));
  }
  RateWindow window{.at_ns = seconds_to_ns(*at_s), .requests_per_s = *rate};
  if (*rate == 0) {
    return window;
  }
  const auto parameter = parse_number(fields[4]);
  if (fields[3] != "Gamma" && fields[3] != "Weibull") {
    return trace_error(place, "{} is not a supported distribution (Gamma, Weibull)",
                       quoted_for_error(fields[3]));
  }
  // Samples of distributions with other shapes would overflow a double.
  if (!parameter || *parameter < 0.01 || *parameter > 1e6) {
    return trace_error(place, "{} is not a shape parameter (0.01 to 1e6)",
                       quoted_for_error(fields[4]));
  }
  window.gaps = fields[3] == "Gamma" ? GapDistribution::kGamma : GapDistribution::kWeibull;
  window.shape_parameter = *parameter;
  return window;
}

// Ends each window where the next one begins. The last one gets the duration of the one before it.
void set_durations(std::vector<RateWindow>& windows) {
  for (std::size_t i = 0; i + 1 < windows.size(); ++i) {
    windows[i].duration_ns = windows[i + 1].at_ns - windows[i].at_ns;
  }
  const std::size_t last = windows.size() - 1;
  windows[last].duration_ns = last > 0 ? windows[last - 1].duration_ns : 600 * kNsPerS;
}

// Parses "{13: 0.49, 14: 0.47}", which is how Python prints a dict.
Result<LengthHistogram> histogram(std::string_view text, const TracePlace& place,
                                  std::string_view what) {
  const auto fail = [&](std::string_view part) {
    return trace_error(place, "{}: {} is not of the form {{length: share, ...}}", what,
                       quoted_for_error(part));
  };
  std::string_view rest = trimmed(text);
  if (rest.size() < 2 || rest.front() != '{' || rest.back() != '}') {
    return fail(rest);
  }
  rest = rest.substr(1, rest.size() - 2);
  LengthHistogram found;
  double total = 0;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const std::size_t colon = entry.find(':');
    const auto share = colon == std::string_view::npos
                           ? std::nullopt
                           : parse_number(trimmed(entry.substr(colon + 1)));
    if (!share || *share < 0 || *share > 1e12) {
      return fail(entry);
    }
    const auto length = parse_tokens(trimmed(entry.substr(0, colon)), place);
    if (!length.ok()) {
      return length.error();
    }
    total += *share;
    found.lengths.push_back(*length);
    found.cumulative.push_back(total);
  }
  if (!found.lengths.empty() && !(total > 0)) {
    return fail(text);
  }
  for (double& share : found.cumulative) {
    share /= total;
  }
  return found;
}

Result<LengthWindow> length_window(std::string_view key, const json::value& value,
                                   const TracePlace& file) {
  const auto at_s = parse_number(key);
  const json::object* object = value.if_object();
  const json::value* input = object ? object->if_contains("input_tokens") : nullptr;
  const json::value* output = object ? object->if_contains("output_tokens") : nullptr;
  if (!at_s || *at_s < 0 || *at_s > kMaxTraceSeconds || !input || !output || !input->is_string() ||
      !output->is_string()) {
    return trace_error(file,
                       "{}: a key must be a time in seconds, its value an object with texts "
                       "input_tokens and output_tokens",
                       quoted_for_error(key));
  }
  auto inputs = histogram(input->get_string(), file, fmt::format("input_tokens of {}", key));
  auto outputs = histogram(output->get_string(), file, fmt::format("output_tokens of {}", key));
  if (!inputs.ok() || !outputs.ok()) {
    return inputs.ok() ? outputs.error() : inputs.error();
  }
  return LengthWindow{seconds_to_ns(*at_s), *std::move(inputs), *std::move(outputs)};
}

// Returns the number of the line that holds `key`. Keys are unique in a file.
std::int64_t line_of_key(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(fmt::format("\"{}\"", key));
  const std::string_view before = text.substr(0, at == std::string_view::npos ? 0 : at);
  return 1 + std::count(before.begin(), before.end(), '\n');
}

Result<std::vector<LengthWindow>> length_windows(const ServeGenTexts& texts) {
  boost::system::error_code failed;
  const json::value file = json::parse(texts.dataset, failed);
  if (failed || !file.is_object() || file.get_object().empty()) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: line 1: the file must be a JSON object of windows{}", texts.dataset_name,
                      failed ? ": " + failed.message() : "");
  }
  std::vector<LengthWindow> windows;
  for (const auto& [key, value] : file.get_object()) {
    const std::string_view start(key.data(), key.size());
    auto window =
        length_window(start, value, {texts.dataset_name, line_of_key(texts.dataset, start)});
    if (!window.ok()) {
      return window.error();
    }
    if (!window->input.lengths.empty() && !window->output.lengths.empty()) {
      windows.push_back(*std::move(window));  // "{}" means that no request came in this window
    }
  }
  if (windows.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: line 1: no window holds lengths",
                      texts.dataset_name);
  }
  std::stable_sort(windows.begin(), windows.end(),
                   [](const LengthWindow& a, const LengthWindow& b) { return a.at_ns < b.at_ns; });
  return windows;
}

}  // namespace

Status check_windows(const ClientProcess& client, std::string_view name) {
  static constexpr double kMostRequests = 4e6;
  for (const RateWindow& window : client.rates) {
    const double seconds = static_cast<double>(window.duration_ns) / kNsPerS;
    if (window.requests_per_s * seconds > kMostRequests) {
      return make_error(
          ErrorCode::kCorrupt,
          "{}: the window at {} s states {:.0f} requests; at most {:.0f} can be sampled", name,
          window.at_ns / kNsPerS, window.requests_per_s * seconds, kMostRequests);
    }
  }
  return {};
}

Result<ClientProcess> parse_servegen_client(const ServeGenTexts& texts) {
  ClientProcess client{.name = texts.name};
  const Status read = for_each_line(
      texts.trace, texts.trace_name, [&](std::string_view line, const TracePlace& place) -> Status {
        auto window = rate_window(line, place);
        if (!window.ok()) {
          return window.error();
        }
        if (!client.rates.empty() && window->at_ns <= client.rates.back().at_ns) {
          return trace_error(place, "windows must be sorted by time");
        }
        client.rates.push_back(*window);
        return {};
      });
  if (!read.ok()) {
    return read.error();
  }
  if (client.rates.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: the file is empty", texts.trace_name);
  }
  set_durations(client.rates);
  if (Status checked = check_windows(client, texts.trace_name); !checked.ok()) {
    return checked.error();
  }
  auto lengths = length_windows(texts);
  if (!lengths.ok()) {
    return lengths.error();
  }
  client.lengths = *std::move(lengths);
  return client;
}

}  // namespace protean
