#include "loadtest/report_text.h"

#include <fmt/format.h>

#include <cmath>

namespace protean::loadtest {
namespace {

std::string row(std::string_view name, const std::string& value) {
  return fmt::format("  {:<26}{}\n", name, value);
}

std::string requests_part(const Summary& summary) {
  std::string text = row("completed", fmt::format("{}", summary.completed));
  text += row("failed", fmt::format("{}", summary.failed));
  for (std::size_t i = 0; i < summary.outcomes.size(); ++i) {
    const auto outcome = static_cast<Outcome>(i);
    if (outcome != Outcome::kCompleted && outcome != Outcome::kInterrupted &&
        summary.outcomes[i] > 0) {
      text += fmt::format("    {:<24}{:<6} {}\n", to_string(outcome), summary.outcomes[i],
                          summary.examples[i]);
    }
  }
  if (summary.interrupted > 0) {
    text += row("interrupted", fmt::format("{}", summary.interrupted));
  }
  return text;
}

std::string throughput_part(const Summary& summary) {
  std::string text = row("duration", fmt::format("{} s", format_number(summary.duration_s)));
  text +=
      row("requests", fmt::format("{} /s", format_number(per_second(summary.completed, summary))));
  text +=
      row("output tokens", fmt::format("{} /s  ({} in all)",
                                       format_number(per_second(summary.output_tokens, summary)),
                                       summary.output_tokens));
  text += row(
      "input + output tokens",
      fmt::format("{} /s  ({} input, {} of them cached)",
                  format_number(per_second(summary.input_tokens + summary.output_tokens, summary)),
                  summary.input_tokens, summary.cached_tokens));
  text += row("tokens are", token_count_source(summary));
  return text;
}

std::string latency_part(const Summary& summary) {
  std::string text = fmt::format("  {:<12}{:>10}", "ms", "mean");
  for (const double percent : summary.percents) {
    text += fmt::format("{:>10}", fmt::format("P{:g}", percent));
  }
  text += fmt::format("{:>10}{:>10}\n", "max", "samples");
  for (std::size_t i = 0; i < kMeasures.size(); ++i) {
    const Distribution& measure = summary.measures[i];
    text += fmt::format("  {:<12}{:>10}", name_of(kMeasures[i]), format_number(measure.mean));
    for (const double value : measure.percentiles) {
      text += fmt::format("{:>10}", format_number(value));
    }
    text += fmt::format("{:>10}{:>10}\n", format_number(measure.max), measure.count);
  }
  return text;
}

std::string slo_part(const Slo& slo, const SloAttainment& met) {
  std::string text;
  const auto one = [&](std::string_view name, double limit_ms, double share) {
    if (limit_ms > 0) {
      text += row(fmt::format("{} <= {} ms", name, format_number(limit_ms)),
                  fmt::format("{:.1f} % of requests", share * 100));
    }
  };
  one("TTFT", slo.ttft_ms, met.ttft);
  one("TPOT", slo.tpot_ms, met.tpot);
  one("E2E", slo.e2e_ms, met.e2e);
  text += row("all limits", fmt::format("{:.1f} % of requests", met.all * 100));
  text += row("goodput", fmt::format("{} requests/s", format_number(met.goodput_requests_per_s)));
  return text;
}

}  // namespace

std::string format_number(double value) {
  const double size = std::abs(value);
  if (size >= 1000 || size == 0) {
    return fmt::format("{:.0f}", value);
  }
  return fmt::format("{:.{}f}", value, size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4);
}

std::string table_of(const RunDescription& run, const Summary& summary) {
  std::string text = fmt::format("\n{} at {}, {}\n{}\n{}\n", run.model, run.server, run.endpoint,
                                 run.arrivals, run.prompts);
  for (const std::string& note : run.notes) {
    text += "note: " + note + "\n";
  }
  text += "\nRequests\n" + requests_part(summary);
  text += "\nThroughput\n" + throughput_part(summary);
  text += "\nLatency\n" + latency_part(summary);
  if (summary.slo) {
    text += "\nService levels\n" + slo_part(run.slo, *summary.slo);
  }
  text += "\nGenerator\n";
  text += row("sent late by",
              fmt::format("{} ms mean, {} P99, {} max", format_number(summary.lag_ms.mean),
                          format_number(summary.lag_ms.percentiles.front()),
                          format_number(summary.lag_ms.max)));
  text += row("own CPU", fmt::format("{:.1f} % of a core", summary.cpu_share * 100));
  if (summary.server_mean_ttft_ms) {
    text += row("mean TTFT by /metrics",
                fmt::format("{} ms", format_number(*summary.server_mean_ttft_ms)));
  }
  for (const std::string& warning : warnings_of(summary)) {
    text += "warning: " + warning + "\n";
  }
  return text;
}

}  // namespace protean::loadtest
