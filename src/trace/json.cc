#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string>

#include "trace/formats.h"
#include "trace/text.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr double kMaxUnixSeconds = 4e9;

std::optional<double> number_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_number()) {
    return std::nullopt;
  }
  return value->to_number<double>();
}

// Returns the whole number from 0 to `largest` under `key`.
Result<std::int64_t> whole(const json::object& object, std::string_view key, double largest,
                           const TracePlace& place) {
  const auto value = number_of(object, key);
  if (!value || *value < 0 || *value > largest ||
      *value != static_cast<double>(static_cast<std::int64_t>(*value))) {
    return trace_error(place, "\"{}\" must be a whole number from 0 to {:.0f}", key, largest);
  }
  return static_cast<std::int64_t>(*value);
}

Result<std::vector<std::int64_t>> hash_ids(const json::object& object, std::int64_t input_tokens,
                                           const TracePlace& place) {
  std::vector<std::int64_t> ids;
  const json::value* found = object.if_contains("hash_ids");
  if (found == nullptr) {
    return ids;
  }
  const json::array* list = found->if_array();
  if (list == nullptr) {
    return trace_error(place, "\"hash_ids\" must be a list of whole numbers");
  }
  if (static_cast<std::int64_t>(list->size()) > ceil_div(input_tokens, kMooncakeBlockTokens)) {
    return trace_error(place,
                       "{} hash_ids are too many for {} input tokens: each id stands for {} tokens",
                       list->size(), input_tokens, kMooncakeBlockTokens);
  }
  for (const json::value& id : *list) {
    boost::system::error_code failed;
    ids.push_back(id.is_number() ? id.to_number<std::int64_t>(failed) : -1);
    if (failed || ids.back() < 0) {
      return trace_error(place, "\"hash_ids\" must be a list of whole numbers");
    }
  }
  return ids;
}

// The request of a line; nothing if the line has none.
using MaybeRequest = std::optional<TraceRequest>;

Result<MaybeRequest> mooncake_request(const json::object& object, const TracePlace& place) {
  const auto at_ms = whole(object, "timestamp", kMaxTraceSeconds * 1000, place);
  const auto input = whole(object, "input_length", kMaxTraceTokens, place);
  const auto output = whole(object, "output_length", kMaxTraceTokens, place);
  for (const auto* part : {&at_ms, &input, &output}) {
    if (!part->ok()) {
      return part->error();
    }
  }
  auto blocks = hash_ids(object, *input, place);
  if (!blocks.ok()) {
    return blocks.error();
  }
  return MaybeRequest({.at_ns = *at_ms * kNsPerMs,
                       .input_tokens = *input,
                       .output_tokens = *output,
                       .prefix_blocks = *std::move(blocks)});
}

Result<MaybeRequest> recorded_request(const json::object& object, const TracePlace& place) {
  const json::value* event = object.if_contains("event");
  if (event == nullptr || *event != "request") {
    return MaybeRequest();
  }
  const json::value* data = object.if_contains("data");
  if (data == nullptr || !data->is_object()) {
    return trace_error(place, "a request needs an object \"data\"");
  }
  const auto at_s = number_of(data->get_object(), "arrived");
  if (!at_s || *at_s < 0 || *at_s > kMaxUnixSeconds) {
    return trace_error(place, "\"arrived\" must be a time in seconds since 1970");
  }
  const auto input = whole(data->get_object(), "prompt_tokens", kMaxTraceTokens, place);
  const auto output = whole(data->get_object(), "output_tokens", kMaxTraceTokens, place);
  if (!input.ok() || !output.ok()) {
    return input.ok() ? output.error() : input.error();
  }
  return MaybeRequest(
      {.at_ns = seconds_to_ns(*at_s), .input_tokens = *input, .output_tokens = *output});
}

// Reads a JSON object of each line with `read`, and leaves out requests with 0 tokens.
Result<Trace> parse_json_lines(std::string_view lines, std::string_view name, TraceFormat format,
                               Result<MaybeRequest> (*read)(const json::object&,
                                                            const TracePlace&)) {
  Trace trace{.format = format};
  std::int64_t empty = 0;
  const Status done =
      for_each_line(lines, name, [&](std::string_view line, const TracePlace& place) -> Status {
        boost::system::error_code failed;
        const json::value value = json::parse({line.data(), line.size()}, failed);
        if (failed || !value.is_object()) {
          return trace_error(place, "{} is not a JSON object{}", quoted_for_error(line),
                             failed ? ": " + failed.message() : "");
        }
        auto request = read(value.get_object(), place);
        if (!request.ok()) {
          return request.error();
        }
        if (*request && ((*request)->input_tokens == 0 || (*request)->output_tokens == 0)) {
          ++empty;
        } else if (*request) {
          trace.requests.push_back(**std::move(request));
        }
        return {};
      });
  if (!done.ok()) {
    return done.error();
  }
  if (empty > 0) {
    trace.notes.push_back(fmt::format("left out {} requests with 0 tokens", empty));
  }
  return trace;
}

// Returns the number of the line that holds byte `offset`, from 1.
std::int64_t line_at(std::string_view text, std::size_t offset) {
  return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
}

Error aggregates_error(std::string_view name, std::string_view why) {
  return make_error(ErrorCode::kCorrupt,
                    "{}: line 1: a JSON object is read as BurstGPT aggregates (Mooncake has "
                    "\"timestamp\" in its first line): {}",
                    name, why);
}

// Returns the mean tokens of a request over all days. It turns tokens/s into requests/s.
Result<double> tokens_per_request(const json::object& file, std::string_view name) {
  const json::value* daily = file.if_contains("daily");
  double requests = 0;
  double tokens = 0;
  if (daily != nullptr && daily->is_array()) {
    for (const json::value& day : daily->get_array()) {
      const json::object* object = day.if_object();
      const auto day_requests = object ? number_of(*object, "req") : std::nullopt;
      const auto day_tokens = object ? number_of(*object, "tok") : std::nullopt;
      if (!day_requests || !day_tokens || *day_requests < 0 || *day_tokens < 0) {
        return aggregates_error(name, "each entry of \"daily\" needs numbers \"req\" and \"tok\"");
      }
      requests += *day_requests;
      tokens += *day_tokens;
    }
  }
  if (requests <= 0 || tokens <= 0) {
    return aggregates_error(name, "\"daily\" must have requests and tokens: their ratio is needed");
  }
  return tokens / requests;
}

}  // namespace

Result<Trace> parse_mooncake(std::string_view lines, std::string_view name) {
  return parse_json_lines(lines, name, TraceFormat::kMooncake, mooncake_request);
}

Result<Trace> parse_recording(std::string_view lines, std::string_view name) {
  auto trace = parse_json_lines(lines, name, TraceFormat::kRecording, recorded_request);
  if (trace.ok()) {  // the lines are in the order in which requests ended
    std::stable_sort(
        trace->requests.begin(), trace->requests.end(),
        [](const TraceRequest& a, const TraceRequest& b) { return a.at_ns < b.at_ns; });
  }
  return trace;
}

Result<Trace> parse_burstgpt_aggregates(std::string_view text, std::string_view name) {
  json::stream_parser parser;
  boost::system::error_code failed;
  const std::size_t used = parser.write_some(text.data(), text.size(), failed);
  if (failed || !parser.done() || !trimmed(text.substr(used)).empty()) {
    return trace_error(
        {name, line_at(text, std::min(used, text.size()))}, "not a JSON object: {}",
        failed ? failed.message() : "the text ends too early, or continues after the object");
  }
  const json::value value = parser.release();
  if (!value.is_object()) {
    return aggregates_error(name, "the file is not an object");
  }
  const json::object& file = value.get_object();
  const json::value* minutes = file.if_contains("week1_min");
  if (minutes == nullptr || !minutes->is_array()) {
    return aggregates_error(name, "\"week1_min\" is missing");
  }
  const auto request_tokens = tokens_per_request(file, name);
  if (!request_tokens.ok()) {
    return request_tokens.error();
  }
  ClientProcess client{.name = "all"};
  TimeNs end_ns = 0;
  for (const json::value& minute : minutes->get_array()) {
    const json::object* object = minute.if_object();
    const auto t = object ? number_of(*object, "t") : std::nullopt;
    const auto tps = object ? number_of(*object, "tps") : std::nullopt;
    if (!t || !tps || *t < 0 || *t * 60 > kMaxTraceSeconds || *tps < 0 || *tps > 1e9 ||
        seconds_to_ns(*t * 60) < end_ns) {
      return aggregates_error(name,
                              "each entry of \"week1_min\" needs a minute \"t\", later than "
                              "the one before, and tokens a second \"tps\"");
    }
    client.rates.push_back({.at_ns = seconds_to_ns(*t * 60),
                            .duration_ns = 60 * kNsPerS,
                            .requests_per_s = *tps / *request_tokens});
    end_ns = client.rates.back().at_ns + 60 * kNsPerS;
  }
  if (Status checked = check_windows(client, name); !checked.ok()) {
    return checked.error();
  }
  Trace trace{.format = TraceFormat::kBurstGptAggregates};
  trace.clients.push_back(std::move(client));
  trace.notes.push_back(fmt::format(
      "requests are sampled (Poisson in each minute) from tokens/s at {:.0f} tokens a request; "
      "lengths are those of --random-input-len and --random-output-len",
      *request_tokens));
  return trace;
}

}  // namespace protean
