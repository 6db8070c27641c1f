#include "loadtest/summary.h"

#include <algorithm>

#include "trace/text.h"

namespace protean::loadtest {
namespace {

constexpr double kLateMs = 10;  // a larger P99 of the lag is worth a warning
constexpr double kBusyShare = 0.9;

bool within(double value_ms, double limit_ms) {
  return limit_ms <= 0 || value_ms <= limit_ms;
}

SloAttainment attainment(const std::vector<RequestRecord>& records, const Slo& slo,
                         const Summary& summary) {
  SloAttainment met;
  for (const RequestRecord& record : records) {
    if (record.outcome != Outcome::kCompleted) {
      continue;
    }
    const bool ttft = within(ttft_ms(record), slo.ttft_ms);
    const bool tpot = within(tpot_ms(record), slo.tpot_ms);
    const bool e2e = within(e2e_ms(record), slo.e2e_ms);
    met.ttft += ttft ? 1 : 0;
    met.tpot += tpot ? 1 : 0;
    met.e2e += e2e ? 1 : 0;
    met.all += ttft && tpot && e2e ? 1 : 0;
  }
  met.goodput_requests_per_s = summary.duration_s > 0 ? met.all / summary.duration_s : 0;
  const auto ended = static_cast<double>(summary.completed + summary.failed);
  for (double* share : {&met.ttft, &met.tpot, &met.e2e, &met.all}) {
    *share = ended > 0 ? *share / ended : 0;
  }
  return met;
}

void count(const RequestRecord& record, Summary& summary) {
  const auto kind = static_cast<std::size_t>(record.outcome);
  ++summary.outcomes[kind];
  if (summary.examples[kind].empty()) {
    summary.examples[kind] = record.error;
    if (record.outcome == Outcome::kHttpStatus) {
      summary.examples[kind] = fmt::format("{}: {}", record.http_status, record.error);
    }
  }
  if (record.outcome != Outcome::kCompleted) {
    ++(record.outcome == Outcome::kInterrupted ? summary.interrupted : summary.failed);
    return;
  }
  ++summary.completed;
  summary.input_tokens += record.input_tokens;
  summary.output_tokens += record.output_tokens;
  summary.cached_tokens += record.cached_tokens;
  summary.answers_with_usage += record.has_usage ? 1 : 0;
}

std::optional<double> mean_ttft_by_server(const std::vector<ServerSample>& samples) {
  if (samples.size() < 2 || !samples.front().metrics.ttft_count ||
      !samples.back().metrics.ttft_count) {
    return std::nullopt;
  }
  const ServerMetrics& first = samples.front().metrics;
  const ServerMetrics& last = samples.back().metrics;
  const double requests = *last.ttft_count - *first.ttft_count;
  if (requests <= 0) {
    return std::nullopt;
  }
  return (last.ttft_sum_s.value_or(0) - first.ttft_sum_s.value_or(0)) / requests * 1000;
}

}  // namespace

std::string_view key_of(Measure measure) {
  switch (measure) {
    case Measure::kTtft:
      return "ttft";
    case Measure::kTpot:
      return "tpot";
    case Measure::kItl:
      return "itl";
    case Measure::kE2e:
      return "e2el";
  }
  return "unknown";
}

std::string_view name_of(Measure measure) {
  switch (measure) {
    case Measure::kTtft:
      return "TTFT";
    case Measure::kTpot:
      return "TPOT";
    case Measure::kItl:
      return "ITL";
    case Measure::kE2e:
      return "E2E";
  }
  return "unknown";
}

std::vector<double> samples_of(Measure measure, const std::vector<RequestRecord>& records) {
  std::vector<double> samples;
  for (const RequestRecord& record : records) {
    if (record.outcome != Outcome::kCompleted) {
      continue;
    }
    switch (measure) {
      case Measure::kTtft:
        samples.push_back(ttft_ms(record));
        break;
      case Measure::kE2e:
        samples.push_back(e2e_ms(record));
        break;
      case Measure::kItl:
        samples.insert(samples.end(), record.itl_ms.begin(), record.itl_ms.end());
        break;
      case Measure::kTpot:
        if (tpot_ms(record) >= 0) {
          samples.push_back(tpot_ms(record));
        }
        break;
    }
  }
  return samples;
}

bool has_any(const Slo& slo) {
  return slo.ttft_ms > 0 || slo.tpot_ms > 0 || slo.e2e_ms > 0;
}

Status set_goodput(Slo& slo, std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const double limit_ms =
      colon == std::string_view::npos ? 0 : parse_number(text.substr(colon + 1)).value_or(0);
  double* field = name == "ttft"   ? &slo.ttft_ms
                  : name == "tpot" ? &slo.tpot_ms
                  : name == "e2el" ? &slo.e2e_ms
                                   : nullptr;
  if (field == nullptr || limit_ms <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--goodput {} must be ttft:MS, tpot:MS or e2el:MS", quoted_for_error(text));
  }
  *field = limit_ms;
  return {};
}

double per_second(std::int64_t count, const Summary& summary) {
  return summary.duration_s > 0 ? static_cast<double>(count) / summary.duration_s : 0;
}

std::string token_count_source(const Summary& summary) {
  if (summary.answers_with_usage == summary.completed) {
    return "counted by the server (usage)";
  }
  if (summary.answers_with_usage == 0) {
    return "chunks with text, since the server reports no usage; input as planned";
  }
  return fmt::format("counted by the server in {} answers, chunks with text in {}",
                     summary.answers_with_usage, summary.completed - summary.answers_with_usage);
}

std::vector<std::string> warnings_of(const Summary& summary) {
  std::vector<std::string> warnings;
  if (summary.failed > 0) {
    warnings.push_back(
        fmt::format("{} of {} requests failed; latencies are of completed requests only",
                    summary.failed, summary.failed + summary.completed));
  }
  const double late_ms =
      summary.lag_ms.percentiles.empty() ? 0 : summary.lag_ms.percentiles.front();
  if (late_ms > kLateMs || summary.cpu_share > kBusyShare) {
    warnings.push_back(fmt::format(
        "the generator sent requests late (P99 {:.1f} ms, at {:.0f} % of a core): it or its "
        "machine was overloaded, so the results are not the server's alone",
        late_ms, summary.cpu_share * 100));
  }
  return warnings;
}

Summary summarise_run(const RunResult& run, const Slo& slo, const std::vector<double>& percents) {
  Summary summary;
  summary.duration_s = seconds(run.elapsed_ns);
  summary.percents = percents;
  std::vector<double> lags;
  for (const RequestRecord& record : run.records) {
    count(record, summary);
    lags.push_back(lag_ms(record));
  }
  for (std::size_t i = 0; i < kMeasures.size(); ++i) {
    summary.measures[i] = summarise(samples_of(kMeasures[i], run.records), percents);
  }
  summary.lag_ms = summarise(std::move(lags), {99});
  if (has_any(slo)) {
    summary.slo = attainment(run.records, slo, summary);
  }
  summary.cpu_share = summary.duration_s > 0 ? run.cpu_s / summary.duration_s : 0;
  summary.server_mean_ttft_ms = mean_ttft_by_server(run.server);
  return summary;
}

}  // namespace protean::loadtest
