#include "loadtest/run_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "loadtest/report_text.h"

namespace protean::loadtest {
namespace {

constexpr std::size_t kMostDots = 4000;
constexpr std::size_t kCurvePoints = 240;
constexpr double kTimeBins = 60;

// Returns a round width of the bins of time: 0.1, 0.2, 0.5, 1 s and so on.
double bin_width_s(double duration_s) {
  const std::vector<double> ticks = linear_ticks(0, std::max(duration_s, 0.5), kTimeBins);
  return std::max(0.1, ticks[1] - ticks[0]);
}

// Returns all points of a short run; of a long one the highest and a regular selection of the rest.
std::vector<Point> thinned(std::vector<Point> points) {
  if (points.size() <= kMostDots) {
    return points;
  }
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.y > b.y; });
  std::vector<Point> kept(points.begin(), points.begin() + kMostDots / 4);
  const std::size_t step = points.size() / (kMostDots * 3 / 4) + 1;
  for (std::size_t i = kMostDots / 4; i < points.size(); i += step) {
    kept.push_back(points[i]);
  }
  return kept;
}

TitledChart ttft_over_time(const RunResult& run, const Slo& slo) {
  Series answered{.name = "TTFT", .style = SeriesStyle::kDots};
  std::vector<std::vector<double>> bins;
  const double width_s = bin_width_s(seconds(run.elapsed_ns)) * 2;
  std::vector<double> failures_s;
  for (const RequestRecord& record : run.records) {
    const double at_s = seconds(record.sent_ns);
    if (record.outcome == Outcome::kCompleted) {
      answered.points.push_back({at_s, ttft_ms(record)});
      const auto bin = static_cast<std::size_t>(at_s / width_s);
      bins.resize(std::max(bins.size(), bin + 1));
      bins[bin].push_back(ttft_ms(record));
    } else if (record.outcome != Outcome::kInterrupted) {
      failures_s.push_back(at_s);
    }
  }
  Series median{.name = fmt::format("median of {:g} s", width_s)};
  for (std::size_t i = 0; i < bins.size(); ++i) {
    if (!bins[i].empty()) {
      std::sort(bins[i].begin(), bins[i].end());
      median.points.push_back({(static_cast<double>(i) + 0.5) * width_s, percentile(bins[i], 50)});
    }
  }
  answered.points = thinned(std::move(answered.points));
  TitledChart made{.title = "Time to first token over the run",
                   .chart = {.x_label = "sent at (s)", .y_label = "TTFT (ms)"}};
  made.chart.series = {std::move(answered), std::move(median)};
  if (!failures_s.empty()) {
    Series failed{.name = "failed", .style = SeriesStyle::kDots, .bad = true};
    for (const double at_s : failures_s) {
      failed.points.push_back({at_s, 0});
    }
    failed.points = thinned(std::move(failed.points));
    made.chart.series.push_back(std::move(failed));
    made.caption = "Failed requests are on the axis.";
  }
  if (slo.ttft_ms > 0) {
    made.chart.limits.push_back({"SLO", slo.ttft_ms, false});
  }
  return made;
}

TitledChart distribution_chart(Measure measure, std::vector<double> samples, double limit_ms) {
  std::sort(samples.begin(), samples.end());
  Chart chart{.x_label = fmt::format("{} (ms)", name_of(measure)),
              .y_label = measure == Measure::kItl ? "% of gaps" : "% of requests",
              .y_max = 100};
  // Tokens that arrived together have gaps of 0, which a log axis cannot show.
  const double low = std::max(percentile(samples, 5), samples.back() * 1e-4);
  chart.log_x = low > 0 && samples.back() > 15 * low;
  Series curve{.name = std::string(name_of(measure))};
  for (std::size_t i = 0; i <= kCurvePoints; ++i) {
    // Points are denser at high percentiles, to show the tail.
    const double part = static_cast<double>(i) / kCurvePoints;
    const double percent = 100 * (1 - (1 - part) * (1 - part));
    const double value = percentile(samples, percent);
    if (!chart.log_x || value >= low * 0.5) {
      curve.points.push_back({value, percent});
    }
  }
  chart.series.push_back(std::move(curve));
  for (const double percent : {50.0, 90.0, 99.0}) {
    const double value = percentile(samples, percent);
    if (percent == 90 && chart.log_x) {
      continue;
    }
    chart.labels.push_back(
        {fmt::format("P{:g} {}", percent, format_number(value)), {value, percent}});
  }
  if (limit_ms > 0) {
    chart.limits.push_back({"SLO", limit_ms, true});
  }
  return {.title = fmt::format("{}: {}", name_of(measure),
                               measure == Measure::kTtft   ? "time to first token"
                               : measure == Measure::kTpot ? "time per output token after the first"
                               : measure == Measure::kItl  ? "time between two chunks of text"
                                                           : "whole answer"),
          .chart = std::move(chart)};
}

TitledChart tokens_over_time(const RunResult& run) {
  const double width_s = bin_width_s(seconds(run.elapsed_ns));
  const auto bins = static_cast<std::size_t>(seconds(run.elapsed_ns) / width_s) + 1;
  std::vector<double> tokens(bins, 0);
  for (const RequestRecord& record : run.records) {
    if (record.first_token_ns < 0 || record.chunks == 0) {
      continue;
    }
    // A chunk may hold several tokens: the server's count is divided evenly among the chunks.
    const double per_chunk =
        record.outcome == Outcome::kCompleted
            ? static_cast<double>(record.output_tokens) / static_cast<double>(record.chunks)
            : 1;
    double at_s = seconds(record.first_token_ns);
    const auto add = [&] {
      tokens[std::min(bins - 1, static_cast<std::size_t>(at_s / width_s))] += per_chunk;
    };
    add();
    for (const float gap_ms : record.itl_ms) {
      at_s += static_cast<double>(gap_ms) / 1000;
      add();
    }
  }
  Series rate{.name = "tokens/s"};
  for (std::size_t i = 0; i + 1 < bins || i == 0; ++i) {
    rate.points.push_back({(static_cast<double>(i) + 0.5) * width_s, tokens[i] / width_s});
  }
  return {.title = "Output tokens per second",
          .chart = {.x_label = fmt::format("time (s), {:g} s each", width_s),
                    .y_label = "tokens/s",
                    .series = {std::move(rate)}}};
}

TitledChart requests_over_time(const RunResult& run) {
  std::vector<std::pair<TimeNs, int>> changes;
  for (const RequestRecord& record : run.records) {
    changes.emplace_back(record.sent_ns, 1);
    changes.emplace_back(record.end_ns, -1);
  }
  std::sort(changes.begin(), changes.end());
  const double width_s = bin_width_s(seconds(run.elapsed_ns)) / 2;
  Series client{.name = "in flight (client)"};
  std::size_t next = 0;
  int running = 0;
  for (double at_s = 0; at_s <= seconds(run.elapsed_ns); at_s += width_s) {
    for (; next < changes.size() && seconds(changes[next].first) <= at_s; ++next) {
      running += changes[next].second;
    }
    client.points.push_back({at_s, static_cast<double>(running)});
  }
  TitledChart made{.title = "Requests in flight and waiting",
                   .chart = {.x_label = "time (s)", .y_label = "requests"}};
  made.chart.series.push_back(std::move(client));
  const auto add = [&](std::string name, std::optional<double> ServerMetrics::*field) {
    Series series{.name = std::move(name)};
    for (const ServerSample& sample : run.server) {
      if (sample.metrics.*field) {
        series.points.push_back({seconds(sample.at_ns), *(sample.metrics.*field)});
      }
    }
    if (!series.points.empty()) {
      made.chart.series.push_back(std::move(series));
      made.caption = "Running and waiting are from the server's /metrics.";
    }
  };
  add("running", &ServerMetrics::running);
  add("waiting", &ServerMetrics::waiting);
  return made;
}

std::optional<TitledChart> kv_over_time(const RunResult& run) {
  Series use{.name = "KV use"};
  for (const ServerSample& sample : run.server) {
    if (sample.metrics.kv_use) {
      use.points.push_back({seconds(sample.at_ns), *sample.metrics.kv_use * 100});
    }
  }
  if (use.points.size() < 2) {
    return std::nullopt;
  }
  return TitledChart{.title = "KV cache in use",
                     .caption = "From the server's /metrics.",
                     .chart = {.x_label = "time (s)",
                               .y_label = "% of KV blocks",
                               .y_max = 100,
                               .series = {std::move(use)}}};
}

}  // namespace

std::vector<TitledChart> charts_of(const RunResult& run, const Slo& slo) {
  std::vector<TitledChart> charts;
  if (run.elapsed_ns <= 0) {
    return charts;
  }
  charts.push_back(ttft_over_time(run, slo));
  charts.push_back(tokens_over_time(run));
  for (const Measure measure : kMeasures) {
    std::vector<double> samples = samples_of(measure, run.records);
    const double limit_ms = measure == Measure::kTtft   ? slo.ttft_ms
                            : measure == Measure::kTpot ? slo.tpot_ms
                            : measure == Measure::kE2e  ? slo.e2e_ms
                                                        : 0;
    if (samples.size() >= 2) {
      charts.push_back(distribution_chart(measure, std::move(samples), limit_ms));
    }
  }
  charts.push_back(requests_over_time(run));
  if (auto kv = kv_over_time(run)) {
    charts.push_back(*std::move(kv));
  }
  return charts;
}

}  // namespace protean::loadtest
