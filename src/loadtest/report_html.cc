#include "loadtest/report_html.h"

#include <fmt/format.h>

#include "loadtest/plot.h"
#include "loadtest/run_charts.h"

namespace protean::loadtest {
namespace {

constexpr std::string_view kPageCss = R"(*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:28px 24px 60px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0}h2{font-size:17px;margin:34px 0 10px}
p{margin:4px 0;color:var(--faint)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:22px 0 8px}
.tile{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:22px;font-weight:650;font-variant-numeric:tabular-nums}
.tile span{color:var(--faint);font-size:13px}
.warn{border-left:3px solid var(--bad);padding:4px 12px;margin:10px 0;color:var(--ink)}
.note{border-left:3px solid var(--axis);padding:4px 12px;margin:10px 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:5px 12px;text-align:right;border-bottom:1px solid var(--grid)}
th{font-weight:600;color:var(--faint);font-size:13px}
th:first-child,td:first-child{text-align:left;padding-left:0}
td.text{text-align:left;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:12px 14px 8px}
figure h3{margin:0 0 8px;font-size:14px}
figcaption{color:var(--faint);font-size:12px;margin-top:2px}
@media print{figure,.tile{break-inside:avoid}}
)";

std::string tile(const std::string& value, const std::string& name) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                     escape_html(name));
}

std::string tiles(const Summary& summary) {
  std::string text = "<div class=\"tiles\">\n";
  text += tile(fmt::format("{} of {}", summary.completed, summary.completed + summary.failed),
               "requests completed");
  text += tile(format_number(per_second(summary.output_tokens, summary)), "output tokens/s");
  text += tile(format_number(per_second(summary.completed, summary)), "requests/s");
  for (const std::size_t i : {0U, 1U}) {  // TTFT and TPOT
    const Distribution& measure = summary.measures[i];
    for (std::size_t p = 0; p < summary.percents.size(); ++p) {
      if (measure.count > 0 && (summary.percents[p] == 50 || summary.percents[p] == 99)) {
        text += tile(format_number(measure.percentiles[p]) + " ms",
                     fmt::format("{} P{:g}", name_of(kMeasures[i]), summary.percents[p]));
      }
    }
  }
  if (summary.slo) {
    text += tile(fmt::format("{:.1f} %", summary.slo->all * 100), "of requests within the SLO");
    text += tile(format_number(summary.slo->goodput_requests_per_s), "goodput, requests/s");
  }
  return text + "</div>\n";
}

std::string latency_table(const Summary& summary) {
  std::string text = "<div class=\"wide\"><table><tr><th>ms</th><th>mean</th>";
  for (const double percent : summary.percents) {
    text += fmt::format("<th>P{:g}</th>", percent);
  }
  text += "<th>max</th><th>samples</th></tr>\n";
  for (std::size_t i = 0; i < kMeasures.size(); ++i) {
    const Distribution& measure = summary.measures[i];
    text += fmt::format("<tr><td>{}</td><td>{}</td>", name_of(kMeasures[i]),
                        format_number(measure.mean));
    for (const double value : measure.percentiles) {
      text += fmt::format("<td>{}</td>", format_number(value));
    }
    text += fmt::format("<td>{}</td><td>{}</td></tr>\n", format_number(measure.max), measure.count);
  }
  return text + "</table></div>\n";
}

std::string error_table(const Summary& summary) {
  if (summary.failed == 0) {
    return "";
  }
  std::string text = "<h2>Errors</h2>\n<table><tr><th>kind</th><th>requests</th><th></th></tr>\n";
  for (std::size_t i = 0; i < summary.outcomes.size(); ++i) {
    const auto outcome = static_cast<Outcome>(i);
    if (summary.outcomes[i] > 0 && outcome != Outcome::kCompleted &&
        outcome != Outcome::kInterrupted) {
      text +=
          fmt::format("<tr><td>{}</td><td>{}</td><td class=\"text\">{}</td></tr>\n",
                      to_string(outcome), summary.outcomes[i], escape_html(summary.examples[i]));
    }
  }
  return text + "</table>\n";
}

std::string detail_table(const RunDescription& run, const Summary& summary) {
  std::string text = "<h2>The run</h2>\n<table>\n";
  const auto row = [&](std::string_view name, const std::string& value) {
    text +=
        fmt::format("<tr><td>{}</td><td class=\"text\">{}</td></tr>\n", name, escape_html(value));
  };
  row("arrivals", run.arrivals);
  row("prompts", run.prompts);
  row("seed", fmt::format("{}", run.seed));
  row("duration", format_number(summary.duration_s) + " s");
  row("input tokens",
      fmt::format("{}, {} of them cached", summary.input_tokens, summary.cached_tokens));
  row("output tokens", fmt::format("{}, {}", summary.output_tokens, token_count_source(summary)));
  if (summary.interrupted > 0) {
    row("interrupted", fmt::format("{}", summary.interrupted));
  }
  row("generator sent late by",
      fmt::format("{} ms mean, {} P99, {} max", format_number(summary.lag_ms.mean),
                  format_number(summary.lag_ms.percentiles.front()),
                  format_number(summary.lag_ms.max)));
  row("generator's own CPU", fmt::format("{:.1f} % of a core", summary.cpu_share * 100));
  if (summary.server_mean_ttft_ms) {
    row("mean TTFT by the server's /metrics", format_number(*summary.server_mean_ttft_ms) + " ms");
  }
  return text + "</table>\n";
}

}  // namespace

std::string html_of(const RunDescription& description, const Summary& summary,
                    const RunResult& run) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>Load test of {0}</title>\n<style>\n{1}{2}</style></head>\n<body>\n"
      "<h1>Load test of {0}</h1>\n<p>{3}, {4} &middot; {5} &middot; {6}</p>\n",
      escape_html(description.model), chart_css(), kPageCss, escape_html(description.server),
      escape_html(description.endpoint), escape_html(description.arrivals),
      escape_html(description.date));
  page += tiles(summary);
  for (const std::string& warning : warnings_of(summary)) {
    page += "<div class=\"warn\">" + escape_html(warning) + "</div>\n";
  }
  for (const std::string& note : description.notes) {
    page += "<div class=\"note\">" + escape_html(note) + "</div>\n";
  }
  page += "<h2>Latency of completed requests</h2>\n" + latency_table(summary);
  page += error_table(summary);
  page += "<h2>Charts</h2>\n<div class=\"charts\">\n";
  for (const TitledChart& made : charts_of(run, description.slo)) {
    page += fmt::format("<figure><h3>{}</h3>{}", escape_html(made.title), svg_of(made.chart));
    page +=
        made.caption.empty() ? "" : "<figcaption>" + escape_html(made.caption) + "</figcaption>";
    page += "</figure>\n";
  }
  page += "</div>\n" + detail_table(description, summary);
  return page + "</body></html>\n";
}

}  // namespace protean::loadtest
