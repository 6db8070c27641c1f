#include "server/operators/tracer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"

namespace protean {
namespace {

namespace json = boost::json;
using Random = std::function<std::uint64_t()>;

constexpr std::size_t kMostSpansHeld = 4096;
constexpr std::chrono::milliseconds kPace{500};  // between batches
constexpr std::chrono::seconds kPatience{3};
constexpr int kSpanServer = 2;
constexpr int kSpanInternal = 1;
constexpr int kStatusError = 2;

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_id(std::string_view text) {
  return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

json::object attribute(std::string_view key, std::string_view value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}
json::object attribute(std::string_view key, std::int64_t value) {
  return {{"key", key}, {"value", {{"intValue", std::to_string(value)}}}};
}
json::object attribute(std::string_view key, double value) {
  return {{"key", key}, {"value", {{"doubleValue", value}}}};
}

json::object span(std::string_view name, const TraceContext& place, const std::string& id,
                  std::pair<std::int64_t, std::int64_t> unix_ns) {
  return {{"traceId", place.trace_id},
          {"spanId", id},
          {"parentSpanId", place.parent_id},
          {"name", name},
          {"kind", kSpanInternal},
          {"startTimeUnixNano", std::to_string(unix_ns.first)},
          {"endTimeUnixNano", std::to_string(std::max(unix_ns.first, unix_ns.second))}};
}

// Names follow OpenTelemetry's semantic conventions for generative AI.
json::array attributes(const AnswerRecord& record) {
  json::array reasons;
  for (std::string_view rest = record.finish_reasons; !rest.empty();) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    reasons.push_back(json::object{{"stringValue", rest.substr(0, end)}});
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  json::array list{
      attribute("gen_ai.operation.name",
                record.origin.path.find("chat") != std::string::npos ? "chat" : "text_completion"),
      attribute("gen_ai.request.model", record.model),
      attribute("gen_ai.response.model", record.model),
      attribute("gen_ai.response.id", record.id),
      attribute("gen_ai.usage.input_tokens", std::int64_t{record.usage.prompt_tokens}),
      attribute("gen_ai.usage.output_tokens", std::int64_t{record.usage.output_tokens}),
      attribute("protean.cached_tokens", std::int64_t{record.usage.cached_tokens}),
      attribute("protean.preemptions", std::int64_t{record.usage.preemptions}),
      attribute("url.path", record.origin.path),
      attribute("client.address", record.origin.client),
      attribute("http.response.status_code", std::int64_t{record.status})};
  if (record.times.first_token_ns > 0) {
    const TimeNs ttft_ns = record.times.first_token_ns - record.received_ns;
    list.push_back(attribute("gen_ai.server.time_to_first_token",
                             static_cast<double>(ttft_ns) / static_cast<double>(kNsPerS)));
  }
  list.push_back(json::object{{"key", "gen_ai.response.finish_reasons"},
                              {"value", {{"arrayValue", {{"values", std::move(reasons)}}}}}});
  return list;
}

std::string envelope(const std::string& spans, const std::string& version) {
  json::object resource{{"attributes", json::array{attribute("service.name", "protean"),
                                                   attribute("service.version", version)}}};
  return fmt::format(
      R"({{"resourceSpans":[{{"resource":{},"scopeSpans":[{{"scope":{{"name":"protean"}},"spans":[{}]}}]}}]}})",
      json::serialize(resource), spans);
}

// Posts a batch and returns the status of the collector's answer, or 0 without an answer.
int post(const OtlpEndpoint& endpoint, const std::string& body) {
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(kPatience);
  stream.connect(endpoint.host, endpoint.port);
  stream << fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      endpoint.path, endpoint.host, endpoint.port, body.size(), body);
  stream.flush();
  std::string version;
  int status = 0;
  stream >> version >> status;
  return stream ? status : 0;
}

// Sends batches. Logs when sending begins to fail and when it works again.
struct Sender {
  OtlpEndpoint endpoint;
  std::string version;
  bool failing = false;

  void send(const std::vector<std::string>& spans) {
    int status = 0;
    try {
      status = post(endpoint, envelope(fmt::format("{}", fmt::join(spans, ",")), version));
    } catch (const std::exception&) {
      status = 0;
    }
    const bool failed = status < 200 || status > 299;
    if (failed && !failing) {
      log::warning("the OTLP collector at {}:{} {}: dropping spans until it accepts them",
                   endpoint.host, endpoint.port,
                   status == 0 ? "does not answer" : fmt::format("answers {}", status));
    } else if (!failed && failing) {
      log::info("the OTLP collector at {}:{} accepts spans again", endpoint.host, endpoint.port);
    }
    failing = failed;
  }
};

}  // namespace

Result<OtlpEndpoint> parse_otlp_endpoint(const std::string& url) {
  const auto parsed = boost::urls::parse_uri(url);
  if (!parsed || parsed->scheme() != "http" || parsed->host().empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--otlp-endpoint {} is not an http:// address like http://127.0.0.1:4318: "
                      "reach a collector behind https through one on this machine",
                      url);
  }
  const std::string path(parsed->encoded_path().data(), parsed->encoded_path().size());
  const std::string port(parsed->port().data(), parsed->port().size());
  return OtlpEndpoint{.host = parsed->host_address(),
                      .port = port.empty() ? "4318" : port,
                      .path = path.size() > 1 ? path : "/v1/traces"};
}

// The format is version "-" trace-id "-" parent-id "-" flags; later versions may append fields.
TraceContext trace_context(std::string_view text, const Random& random) {
  const bool shaped = text.size() >= 55 && text[2] == '-' && text[35] == '-' && text[52] == '-' &&
                      is_hex(text.substr(0, 2)) && text.substr(0, 2) != "ff" &&
                      is_id(text.substr(3, 32)) && is_id(text.substr(36, 16)) &&
                      is_hex(text.substr(53, 2)) &&
                      (text.size() == 55 || (text.substr(0, 2) != "00" && text[55] == '-'));
  if (!shaped) {
    return {.trace_id = fmt::format("{:016x}{:016x}", random() | 1, random())};
  }
  const char flags = text[54];
  const int low = flags <= '9' ? flags - '0' : flags - 'a' + 10;
  return {.trace_id = std::string(text.substr(3, 32)),
          .parent_id = std::string(text.substr(36, 16)),
          .sampled = (low & 1) != 0};
}

std::string spans_json(const AnswerRecord& record, const TraceContext& trace,
                       std::int64_t unix_offset_ns, const Random& random) {
  const auto new_id = [&] { return fmt::format("{:016x}", random() | 1); };
  const RequestTimes& times = record.times;
  const auto between = [&](TimeNs from, TimeNs to) {
    return std::pair{from + unix_offset_ns, to + unix_offset_ns};
  };
  const std::string id = new_id();
  json::object whole = span(fmt::format("{} {}", record.origin.path, record.model), trace, id,
                            between(record.received_ns, times.finished_ns));
  whole["kind"] = kSpanServer;
  whole["attributes"] = attributes(record);
  if (record.status >= 500) {
    whole["status"] = {{"code", kStatusError}};
  }
  std::string text = json::serialize(whole);
  const TraceContext beneath{.trace_id = trace.trace_id, .parent_id = id};
  const auto child = [&](std::string_view name, TimeNs from, TimeNs to) {
    if (from > 0) {
      text += "," + json::serialize(span(name, beneath, new_id(),
                                         between(from, to > 0 ? to : times.finished_ns)));
    }
  };
  child("queue", record.received_ns, times.scheduled_ns);
  child("prefill", times.scheduled_ns, times.first_token_ns);
  child("decode", times.first_token_ns, times.finished_ns);
  return text;
}

Tracer::Tracer(Setting setting)
    : setting_(std::move(setting)),
      spans_(kMostSpansHeld, [sender = Sender{setting_.endpoint, setting_.version}](
                                 const std::vector<std::string>& spans) mutable {
        sender.send(spans);
        std::this_thread::sleep_for(kPace);
      }) {}

void Tracer::add(const AnswerRecord& record) {
  const TraceContext trace = trace_context(record.origin.traceparent, setting_.random);
  if (trace.sampled) {
    spans_.put(spans_json(record, trace, setting_.unix_offset_ns, setting_.random));
  }
}

}  // namespace protean
