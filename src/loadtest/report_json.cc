#include "loadtest/report_json.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <iterator>
#include <optional>

namespace protean::loadtest {
namespace {

namespace json = boost::json;

constexpr std::string_view kFormat = "protean-bench/1";

// Appends one JSON object to a text, field by field. Boost.JSON would write 12.5 as 1.25E1 and keep
// a second copy of every record in memory.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& text) : text_(text) { text_ += '{'; }

  std::string& raw(std::string_view key) {
    fmt::format_to(std::back_inserter(text_), "{}\"{}\":", first_ ? "" : ",", key);
    first_ = false;
    return text_;
  }
  void text(std::string_view key, std::string_view value) {
    raw(key) += json::serialize(json::value(json::string_view(value.data(), value.size())));
  }
  void integer(std::string_view key, std::int64_t value) { raw(key) += fmt::format("{}", value); }
  void number(std::string_view key, double value) {
    raw(key) += std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
  }
  void number(std::string_view key, const std::optional<double>& value) {
    if (value) {
      number(key, *value);
    }
  }
  void end() { text_ += '}'; }

 private:
  std::string& text_;
  bool first_ = true;
};

void write_description(const RunDescription& run, ObjectWriter& out) {
  out.text("format", kFormat);
  out.text("date", run.date);
  out.text("server", run.server);
  out.text("endpoint", run.endpoint);
  out.text("model_id", run.model);
  out.text("arrivals", run.arrivals);
  out.text("prompts", run.prompts);
  out.integer("seed", static_cast<std::int64_t>(run.seed));
  if (std::isinf(run.request_rate)) {
    out.text("request_rate", "inf");
  } else if (run.request_rate > 0) {
    out.number("request_rate", run.request_rate);
  }
  out.number("burstiness", run.burstiness);
  if (run.max_concurrency > 0) {
    out.integer("max_concurrency", run.max_concurrency);
  }
  json::array notes(run.notes.begin(), run.notes.end());
  out.raw("notes") += json::serialize(notes);
}

void write_measures(const Summary& summary, ObjectWriter& out) {
  for (std::size_t i = 0; i < kMeasures.size(); ++i) {
    const Distribution& measure = summary.measures[i];
    const std::string_view key = key_of(kMeasures[i]);
    out.number(fmt::format("mean_{}_ms", key), measure.mean);
    out.number(fmt::format("std_{}_ms", key), measure.standard_deviation);
    for (std::size_t p = 0; p < summary.percents.size(); ++p) {
      if (summary.percents[p] == 50) {
        out.number(fmt::format("median_{}_ms", key), measure.percentiles[p]);
      }
      out.number(fmt::format("p{:g}_{}_ms", summary.percents[p], key), measure.percentiles[p]);
    }
    out.number(fmt::format("max_{}_ms", key), measure.max);
  }
}

void write_summary(const RunDescription& run, const Summary& summary, ObjectWriter& out) {
  out.number("duration", summary.duration_s);
  out.integer("completed", summary.completed);
  out.integer("failed", summary.failed);
  out.integer("interrupted", summary.interrupted);
  out.integer("total_input_tokens", summary.input_tokens);
  out.integer("total_output_tokens", summary.output_tokens);
  out.integer("total_cached_tokens", summary.cached_tokens);
  out.integer("answers_with_usage", summary.answers_with_usage);
  out.number("request_throughput", per_second(summary.completed, summary));
  out.number("output_throughput", per_second(summary.output_tokens, summary));
  out.number("total_token_throughput",
             per_second(summary.input_tokens + summary.output_tokens, summary));
  write_measures(summary, out);
  ObjectWriter errors(out.raw("errors"));
  for (std::size_t i = 0; i < summary.outcomes.size(); ++i) {
    const auto outcome = static_cast<Outcome>(i);
    if (outcome != Outcome::kCompleted && outcome != Outcome::kInterrupted) {
      errors.integer(to_string(outcome), summary.outcomes[i]);
    }
  }
  errors.end();
  if (summary.slo) {
    out.number("request_goodput", summary.slo->goodput_requests_per_s);
    ObjectWriter slo(out.raw("slo"));
    slo.number("ttft_ms", run.slo.ttft_ms);
    slo.number("tpot_ms", run.slo.tpot_ms);
    slo.number("e2el_ms", run.slo.e2e_ms);
    slo.number("ttft_attainment", summary.slo->ttft);
    slo.number("tpot_attainment", summary.slo->tpot);
    slo.number("e2el_attainment", summary.slo->e2e);
    slo.number("attainment", summary.slo->all);
    slo.end();
  }
  ObjectWriter generator(out.raw("generator"));
  generator.number("mean_lag_ms", summary.lag_ms.mean);
  generator.number("p99_lag_ms", summary.lag_ms.percentiles.front());
  generator.number("max_lag_ms", summary.lag_ms.max);
  generator.number("cpu_share", summary.cpu_share);
  generator.end();
  out.number("server_mean_ttft_ms", summary.server_mean_ttft_ms);
}

void write_samples(const std::vector<ServerSample>& samples, std::string& text) {
  text += '[';
  for (const ServerSample& sample : samples) {
    text += &sample == samples.data() ? "\n" : ",\n";
    ObjectWriter out(text);
    out.number("at_s", seconds(sample.at_ns));
    out.number("kv_use", sample.metrics.kv_use);
    out.number("running", sample.metrics.running);
    out.number("waiting", sample.metrics.waiting);
    out.end();
  }
  text += ']';
}

void write_record(const RequestRecord& record, bool with_itl, std::string& text) {
  ObjectWriter out(text);
  out.integer("index", record.index);
  out.text("outcome", to_string(record.outcome));
  out.number("due_s", seconds(record.due_ns));
  out.number("sent_s", seconds(record.sent_ns));
  out.number("end_s", seconds(record.end_ns));
  if (record.connected_ns >= 0) {
    out.number("connect_ms", static_cast<double>(record.connected_ns - record.sent_ns) / kNsPerMs);
  }
  if (record.first_token_ns >= 0) {
    out.number("ttft_ms", ttft_ms(record));
    out.number("last_token_ms",
               static_cast<double>(record.last_token_ns - record.sent_ns) / kNsPerMs);
  }
  if (record.outcome == Outcome::kCompleted) {
    out.number("e2el_ms", e2e_ms(record));
    if (tpot_ms(record) >= 0) {
      out.number("tpot_ms", tpot_ms(record));
    }
  }
  out.integer("planned_input_tokens", record.planned_input_tokens);
  out.integer("planned_output_tokens", record.planned_output_tokens);
  out.integer("input_tokens", record.input_tokens);
  out.integer("output_tokens", record.output_tokens);
  out.integer("cached_tokens", record.cached_tokens);
  out.integer("chunks", record.chunks);
  out.raw("usage") += record.has_usage ? "true" : "false";
  out.integer("http_status", record.http_status);
  out.text("finish_reason", record.finish_reason);
  if (!record.error.empty()) {
    out.text("error", record.error);
  }
  if (with_itl) {
    out.raw("itl_ms") += fmt::format("[{:.4f}]", fmt::join(record.itl_ms, ","));
  }
  out.end();
}

// Returns the number under `key`, or -1 if there is none.
double number_in(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_number() ? value->to_number<double>() : -1;
}

TimeNs time_in(const json::object& object, std::string_view key, double unit_ns) {
  const double value = number_in(object, key);
  return value < 0 || value * unit_ns > 9e18 ? -1 : static_cast<TimeNs>(value * unit_ns);
}

RequestRecord record_of(const json::object& object) {
  RequestRecord record;
  const json::value* outcome = object.if_contains("outcome");
  for (int i = 0; i < kOutcomes; ++i) {
    if (outcome != nullptr && outcome->is_string() &&
        std::string_view(outcome->get_string()) == to_string(static_cast<Outcome>(i))) {
      record.outcome = static_cast<Outcome>(i);
    }
  }
  record.index = time_in(object, "index", 1);
  record.sent_ns = time_in(object, "sent_s", kNsPerS);
  record.end_ns = time_in(object, "end_s", kNsPerS);
  const TimeNs ttft_ns = time_in(object, "ttft_ms", kNsPerMs);
  const TimeNs last_ns = time_in(object, "last_token_ms", kNsPerMs);
  record.first_token_ns = ttft_ns < 0 ? -1 : record.sent_ns + ttft_ns;
  record.last_token_ns = last_ns < 0 ? -1 : record.sent_ns + last_ns;
  record.planned_input_tokens = time_in(object, "planned_input_tokens", 1);
  record.planned_output_tokens = time_in(object, "planned_output_tokens", 1);
  record.input_tokens = time_in(object, "input_tokens", 1);
  record.output_tokens = time_in(object, "output_tokens", 1);
  const json::value* gaps = object.if_contains("itl_ms");
  if (gaps != nullptr && gaps->is_array()) {
    for (const json::value& gap : gaps->get_array()) {
      record.itl_ms.push_back(gap.is_number() ? gap.to_number<float>() : 0);
    }
  }
  return record;
}

std::string text_in(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

RecordedLoad load_of(const json::object& file) {
  const json::value* seed = file.if_contains("seed");
  return {.endpoint = text_in(file, "endpoint"),
          .arrivals = text_in(file, "arrivals"),
          .prompts = text_in(file, "prompts"),
          .seed = seed != nullptr ? json::serialize(*seed) : ""};
}

}  // namespace

std::string json_of(const RunDescription& description, const Summary& summary, const RunResult& run,
                    const JsonDetail& detail) {
  std::string text;
  ObjectWriter out(text);
  write_description(description, out);
  write_summary(description, summary, out);
  if (!detail.form.empty()) {
    out.raw("form") += detail.form;
  }
  if (!detail.groups.empty()) {
    out.raw("groups") += detail.groups;
  }
  out.integer("clock_start_ns", run.clock_start_ns);
  write_samples(run.server, out.raw("server_metrics"));
  if (detail.requests) {
    out.raw("requests") += '[';
    for (const RequestRecord& record : run.records) {
      text += &record == run.records.data() ? "\n" : ",\n";
      write_record(record, detail.itl, text);
    }
    text += ']';
  }
  out.end();
  text += '\n';
  return text;
}

Result<RecordedRun> parse_recorded_run(std::string_view text, std::string_view name) {
  boost::system::error_code failed;
  const json::value value = json::parse({text.data(), text.size()}, failed);
  const json::object* file = failed ? nullptr : value.if_object();
  if (file == nullptr || text_in(*file, "format") != kFormat) {
    return make_error(ErrorCode::kCorrupt, "{} is not a result of protean bench serve --json{}",
                      name, failed ? ": " + failed.message() : "");
  }
  const json::value* requests = file->if_contains("requests");
  if (requests == nullptr || !requests->is_array() || requests->get_array().empty()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{} has no records of requests to compare; run protean bench serve without --no-records",
        name);
  }
  RecordedRun run{.label = fmt::format("{} at {}, {}", text_in(*file, "model_id"),
                                       text_in(*file, "server"), text_in(*file, "date")),
                  .load = load_of(*file),
                  .duration_s = number_in(*file, "duration")};
  for (const json::value& request : requests->get_array()) {
    if (!request.is_object()) {
      return make_error(ErrorCode::kCorrupt, "{}: an element of \"requests\" is not an object",
                        name);
    }
    run.records.push_back(record_of(request.get_object()));
    run.has_itl |= !run.records.back().itl_ms.empty();
  }
  return run;
}

}  // namespace protean::loadtest
