#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/repetitions_for_test.h"
#include "loadtest/compare.h"
#include "loadtest/plot.h"
#include "loadtest/random.h"
#include "loadtest/report_html.h"
#include "loadtest/report_json.h"

namespace protean::loadtest {
namespace {

// Returns a run of `count` answers, 50 ms apart: 11 tokens, TTFT about 100 ms, TPOT about
// `tpot_ms`.
RunResult made_run(int count, double tpot_ms, std::uint64_t seed) {
  RunResult run;
  Random random(seed);
  for (int i = 0; i < count; ++i) {
    RequestRecord record{.index = i, .due_ns = i * 50 * kNsPerMs};
    record.sent_ns = record.due_ns + kNsPerMs;
    record.connected_ns = record.sent_ns;
    record.first_token_ns =
        record.sent_ns + static_cast<TimeNs>((80 + 40 * random.uniform()) * kNsPerMs);
    record.last_token_ns = record.first_token_ns;
    for (int token = 1; token < 11; ++token) {
      const double gap_ms = tpot_ms * (0.9 + 0.2 * random.uniform());
      record.itl_ms.push_back(static_cast<float>(gap_ms));
      record.last_token_ns += static_cast<TimeNs>(gap_ms * kNsPerMs);
    }
    record.end_ns = record.last_token_ns;
    record.input_tokens = 20;
    record.output_tokens = 11;
    record.chunks = 11;
    record.has_usage = true;
    record.outcome = Outcome::kCompleted;
    run.elapsed_ns = std::max(run.elapsed_ns, record.end_ns);
    run.records.push_back(record);
  }
  run.cpu_s = 0.1;
  return run;
}

RequestRecord failure(Outcome outcome) {
  return {
      .sent_ns = 0, .end_ns = 5, .outcome = outcome, .http_status = 503, .error = "<no> \"room\""};
}

RunDescription description() {
  return {.server = "http://h",
          .endpoint = "/v1/completions",
          .model = "m<1>",
          .arrivals = "Poisson",
          .prompts = "random",
          .date = "2026-01-01T00:00:00Z",
          .request_rate = 20};
}

TEST(Statistics, PercentilesEqualNumpys) {
  const std::vector<double> sorted = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(sorted, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(sorted, 90), 3.7);
  EXPECT_DOUBLE_EQ(percentile(sorted, 100), 4);
  EXPECT_DOUBLE_EQ(percentile({5}, 99), 5);
  std::vector<double> shuffled = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(percentile_of(90)(shuffled), 3.7);
  const Distribution found = summarise({3, 1, 2}, {50});
  EXPECT_DOUBLE_EQ(found.mean, 2);
  EXPECT_DOUBLE_EQ(found.standard_deviation, std::sqrt(2.0 / 3));
  EXPECT_EQ(summarise({}, {50}).count, 0);
}

// A 95 % interval must cover the true ratio in about 95 % of cases, not in far fewer or far more.
TEST(Statistics, BootstrapCoversTheTruth) {
  Random random(5);
  int covered = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<double> a(80);
    std::vector<double> b(80);
    for (double& sample : a) sample = 10 + random.normal();
    for (double& sample : b) sample = 15 + 2 * random.normal();
    const Interval interval =
        bootstrap_ratio(a, b, mean_of, {.rounds = 300, .seed = static_cast<std::uint64_t>(round)});
    covered += interval.low <= 1.5 && 1.5 <= interval.high ? 1 : 0;
  }
  EXPECT_GE(covered, 178);
  EXPECT_LE(covered, 199);
}

TEST(Summary, CountsAndMeasures) {
  RunResult run = made_run(100, 20, 1);
  run.records.push_back(failure(Outcome::kHttpStatus));
  run.records.push_back(failure(Outcome::kInterrupted));
  const Summary summary = summarise_run(run, {.ttft_ms = 100, .tpot_ms = 30}, {50, 99});
  EXPECT_EQ(summary.completed, 100);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.interrupted, 1);
  EXPECT_EQ(summary.output_tokens, 1100);
  EXPECT_NEAR(summary.measures[1].mean, 20, 0.2);
  EXPECT_EQ(summary.measures[2].count, 1000);
  const auto fast =
      std::count_if(run.records.begin(), run.records.begin() + 100,
                    [](const RequestRecord& record) { return ttft_ms(record) <= 100; });
  ASSERT_TRUE(summary.slo.has_value());
  EXPECT_DOUBLE_EQ(summary.slo->all, static_cast<double>(fast) / 101) << "a failure misses its SLO";
  EXPECT_DOUBLE_EQ(summary.slo->tpot, 100.0 / 101);
  EXPECT_NEAR(summary.slo->goodput_requests_per_s, static_cast<double>(fast) / summary.duration_s,
              1e-9);
  EXPECT_DOUBLE_EQ(summary.lag_ms.mean, 100.0 / 102);
  EXPECT_EQ(warnings_of(summary).size(), 1U) << "failures cause a warning";
  const std::string table = table_of(description(), summary);
  EXPECT_NE(table.find("http_status             1      503: <no>"), std::string::npos) << table;
}

TEST(Summary, GoodputFlags) {
  Slo slo;
  EXPECT_TRUE(set_goodput(slo, "ttft:200").ok());
  EXPECT_TRUE(set_goodput(slo, "e2el:1e3").ok());
  EXPECT_EQ(slo.ttft_ms, 200);
  EXPECT_EQ(slo.e2e_ms, 1000);
  for (const char* wrong : {"", "ttft", "ttft:", "ttft:-1", "itl:5", "ttft:fast"}) {
    EXPECT_FALSE(set_goodput(slo, wrong).ok()) << wrong;
  }
}

TEST(ReportJson, HasVllmsNamesAndIsParsedBack) {
  RunResult run = made_run(50, 20, 1);
  run.records.push_back(failure(Outcome::kHttpStatus));
  run.server.push_back({kNsPerS, {.kv_use = 0.25, .running = 3}});
  const Summary summary = summarise_run(run, {}, {50, 99});
  const std::string text = json_of(description(), summary, run, {.requests = true, .itl = true});
  const boost::json::value file = boost::json::parse(text);
  EXPECT_NEAR(file.at("median_ttft_ms").to_number<double>(), summary.measures[0].percentiles[0],
              1e-3);
  EXPECT_EQ(file.at("completed").as_int64(), 50);
  EXPECT_EQ(file.at("errors").at("http_status").as_int64(), 1);
  EXPECT_EQ(file.at("server_metrics").at(0).at("kv_use").as_double(), 0.25);
  const auto read = parse_recorded_run(text, "f");
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->records.size(), 51U);
  EXPECT_EQ(read->records.back().outcome, Outcome::kHttpStatus);
  EXPECT_NEAR(tpot_ms(read->records[7]), tpot_ms(run.records[7]), 1e-3);
  EXPECT_EQ(read->records[7].itl_ms.size(), 10U);
  EXPECT_FALSE(
      parse_recorded_run(json_of(description(), summary, run, {.requests = false}), "f").ok());
  EXPECT_FALSE(parse_recorded_run("{}", "f").ok());
  EXPECT_FALSE(parse_recorded_run("{", "f").ok());
}

RecordedRun recorded(const RunResult& run) {
  return {.label = "x",
          .duration_s = static_cast<double>(run.elapsed_ns) / kNsPerS,
          .records = run.records};
}

TEST(Compare, FindsOnlyRealDifferences) {
  const RecordedRun a = recorded(made_run(200, 20, 1));
  const RecordedRun same = recorded(made_run(200, 20, 2));
  const RecordedRun slower = recorded(made_run(200, 22, 3));
  const BootstrapOptions options{.rounds = repetitions(300)};
  const auto find = [](const std::vector<ComparedMeasure>& compared, std::string_view name) {
    const auto found = std::find_if(compared.begin(), compared.end(),
                                    [&](const auto& measure) { return measure.name == name; });
    EXPECT_NE(found, compared.end()) << name;
    return *found;
  };
  const auto against_slower = compare_runs(a, slower, options);
  const ComparedMeasure tpot = find(against_slower, "TPOT P50");
  EXPECT_TRUE(tpot.significant);
  EXPECT_NEAR(tpot.ratio, 1.1, 0.01);
  EXPECT_TRUE(tpot.interval.low < 1.1 && tpot.interval.high > 1.09);
  EXPECT_FALSE(find(against_slower, "TTFT mean").significant);
  EXPECT_FALSE(find(compare_runs(a, same, options), "TPOT mean").significant);
  const std::string table = comparison_table(a, slower, against_slower);
  EXPECT_NE(table.find("B is worse"), std::string::npos);
  EXPECT_EQ(comparison_table(a, slower, compare_runs(a, slower, options)), table)
      << "the same seed gives the same table";
}

TEST(Compare, ReportsDifferentLoads) {
  const RunResult run = made_run(20, 20, 1);
  const auto read_back = [](const RunDescription& described, const RunResult& result) {
    const Summary summary = summarise_run(result, {}, {50, 99});
    return *parse_recorded_run(json_of(described, summary, result, {}), "f");
  };
  const RecordedRun a = read_back(description(), run);
  EXPECT_EQ(load_differences(a, read_back(description(), made_run(10, 25, 2))),
            std::vector<std::string>())
      << "the same load with other results";
  RunDescription other = description();
  other.arrivals = "closed loop";
  other.seed = 7;
  RunResult longer = run;
  longer.records[3].planned_output_tokens += 1;
  const RecordedRun b = read_back(other, longer);
  EXPECT_EQ(load_differences(a, b),
            (std::vector<std::string>{"arrivals: A Poisson, B closed loop", "seed: A 0, B 7",
                                      "lengths: 1 of the 20 requests that both runs sent"}));
  const auto table = [&](const RecordedRun& compared) {
    return comparison_table(a, compared, compare_runs(a, compared, {.rounds = 100}));
  };
  EXPECT_NE(table(b).find("The loads differ"), std::string::npos);
  EXPECT_EQ(table(a).find("The loads differ"), std::string::npos);
}

TEST(Plot, TicksAreRound) {
  EXPECT_EQ(linear_ticks(0, 9.3, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(log_ticks(9, 210), (std::vector<double>{10, 20, 50, 100, 200}));
  EXPECT_GE(log_ticks(3, 4).size(), 2U);
}

// The page loads nothing, and texts from a server cannot become markup.
TEST(ReportHtml, LoadsNothingAndEscapesTexts) {
  RunResult run = made_run(60, 20, 1);
  run.records.push_back(failure(Outcome::kErrorEvent));
  for (int i = 0; i < 4; ++i) {
    run.server.push_back({i * kNsPerS, {.kv_use = 0.1 * i, .running = 3, .waiting = 1}});
  }
  const Slo slo{.ttft_ms = 100};
  const std::string page = html_of(description(), summarise_run(run, slo, {50, 99}), run);
  for (const char* foreign : {"http://www", "https://", "<script", "src=", "@import", "url("}) {
    EXPECT_EQ(page.find(foreign), std::string::npos) << foreign;
  }
  EXPECT_EQ(page.find("m<1>"), std::string::npos);
  EXPECT_EQ(page.find("<no>"), std::string::npos);
  EXPECT_NE(page.find("&lt;no&gt;"), std::string::npos);
  std::size_t charts = 0;
  for (std::size_t at = page.find("<svg"); at != std::string::npos;
       at = page.find("<svg", at + 1)) {
    ++charts;
  }
  EXPECT_EQ(charts, 8U);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  const RunResult nothing;
  EXPECT_FALSE(html_of(description(), summarise_run(nothing, slo, {50, 99}), nothing).empty());
}

}  // namespace
}  // namespace protean::loadtest
