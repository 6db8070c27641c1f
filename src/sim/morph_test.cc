// Tests morphs of the production engine in virtual time.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/repetitions_for_test.h"
#include "base/test_data.h"
#include "sim/elastic_scene_for_test.h"
#include "sim/report_text_for_test.h"
#include "sim/traces_for_test.h"

namespace protean {
namespace {

std::vector<TraceRequest> square_wave(double period_s, double high, int periods) {
  return arrivals([=](double at_s) { return std::fmod(at_s, period_s) < period_s / 2 ? high : 2; },
                  period_s * periods, static_cast<unsigned>(period_s * high));
}

// Compares with the paper's rule under the same loads.
TEST(ElasticSimulation, SquareWavesCauseAtMostOneCycleEach) {
  const SimulationConfig own = config_of({});
  SimulationConfig papers = own;
  papers.engine.morph->policy.rule = MorphRule::kPaper;
  std::int64_t swaps = 0;
  std::int64_t papers_swaps = 0;
  // The tests of src/control try each period with more loads.
  for (const auto& [period_s, high] :
       {std::pair{1.0, 36.0}, {3.0, 24.0}, {8.0, 36.0}, {15.0, 24.0}, {30.0, 36.0}, {60.0, 24.0}}) {
    SCOPED_TRACE(fmt::format("period {} s, {} per s", period_s, high));
    const int periods = std::max(2, static_cast<int>(24 / period_s));
    const auto trace = square_wave(period_s, high, periods);
    const Outcome found = outcome(simulate(own, trace));
    const Outcome of_paper = outcome(simulate(papers, trace));
    EXPECT_LE(found.lowerings, periods);
    EXPECT_LE(found.swaps, of_paper.swaps);
    EXPECT_TRUE(found.back) << "the last form has full precision";
    swaps += found.swaps;
    papers_swaps += of_paper.swaps;
  }
  EXPECT_GT(swaps, 100) << "precision does change";
  EXPECT_LT(3 * swaps, papers_swaps);
}

TEST(ElasticSimulation, ABurstIsServedSoonerAndOnlyTheBurstAtLowerPrecision) {
  std::vector<TraceRequest> trace = square_wave(60, 24, 2);
  const SimulationConfig config = config_of({});
  const SimulationReport report = simulate(config, trace);
  const Outcome off = outcome(simulate(fixed(config), trace));
  const Outcome found = outcome(report);
  EXPECT_GT(off.ttft_p95_s(), 4 * found.ttft_p95_s());
  EXPECT_GT(3 * found.most_blocks, 4 * config.engine.scheduler.kv_blocks)
      << "the KV cache grew by a third";
  EXPECT_EQ(off.swaps, 0);
  const FormAt& first = report.forms.front();
  for (const FormAt& form : report.forms) {
    const double at_s = static_cast<double>(form.at_ns) / kNsPerS;
    // The high load ends after 30 and 90 s.
    if ((at_s > 40 && at_s < 60) || at_s > 100) {
      EXPECT_EQ(form.status->form.layer_precision, first.status->form.layer_precision) << at_s;
    }
  }
  EXPECT_EQ(report.forms.back().status->form, config.engine.morph->start);
}

TEST(ElasticSimulation, TheQueueAloneLowersLater) {
  const SimulationConfig ahead = config_of({});
  SimulationConfig queued = ahead;
  queued.engine.morph->policy.rule = MorphRule::kQueued;
  const std::vector<TraceRequest> trace = square_wave(60, 24, 1);
  const Outcome found = outcome(simulate(ahead, trace));
  const Outcome of_queue = outcome(simulate(queued, trace));
  EXPECT_GE(found.lowered_ns, 0);
  EXPECT_GT(of_queue.lowered_ns, found.lowered_ns);
  EXPECT_GT(of_queue.late, found.late);
}

TEST(ElasticSimulation, TheSameSeedHasTheSameBytes) {
  SimulationConfig config = config_of({.mode = MorphMode::kPerformance});
  config.morph_cost.failure_probability = 0.05;
  config.cancel_probability = 0.1;
  const auto trace = square_wave(8, 30, 4);
  const SimulationReport first = simulate(config, trace);
  const SimulationReport second = simulate(config, trace);
  EXPECT_EQ(to_csv(first), to_csv(second));
  EXPECT_EQ(forms_to_csv(first), forms_to_csv(second));
  EXPECT_GT(first.forms.size(), 50U);
}

// With slow copies, failures, cancels, small caches and several steps in flight, every request
// ends, pages are conserved (MorphModel checks it), and the last form has full precision.
TEST(ElasticSimulation, RandomLoadsAndFaultsEndWell) {
  std::int64_t swaps = 0;
  std::int64_t failures = 0;
  for (int seed = 0; seed < repetitions(10); ++seed) {
    std::mt19937 random(seed);
    SimulationConfig config =
        config_of({.kv_share = 0.1 + 0.02 * static_cast<double>(random() % 20),
                   .mode = seed % 2 == 0 ? MorphMode::kBalanced : MorphMode::kPerformance});
    config.seed = seed;
    config.cancel_probability = 0.2;
    config.shared_prefix_tokens = static_cast<int>(random() % 100);
    config.morph_cost.copy_bytes_per_us = random() % 3 == 0 ? 5 : 500;
    config.morph_cost.failure_probability = random() % 2 == 0 ? 0.1 : 0;
    config.engine.max_in_flight = 1 + static_cast<int>(random() % 3);
    FormBounds& bounds = config.engine.morph->bounds;
    bounds.order = swap_targets(bounds.spec.layers, random() % 2 == 0);
    config.engine.morph->max_in_flight_swaps = 1 + static_cast<int>(random() % 3);
    std::vector<TraceRequest> trace(200);
    TimeNs at_ns = 0;
    for (TraceRequest& request : trace) {
      at_ns += random() % 50 == 0 ? 8 * kNsPerS : random() % (60 * kNsPerMs);
      request = {at_ns, 1 + static_cast<int>(random() % 500), static_cast<int>(random() % 200)};
    }
    const SimulationReport report = simulate(config, trace);
    EXPECT_EQ(report.finished.size() + static_cast<std::size_t>(report.refused), trace.size());
    EXPECT_EQ(report.final.kv_blocks_used, 0);
    EXPECT_EQ(report.final.running + report.final.waiting, 0);
    const FormStatus& last = *report.forms.back().status;
    EXPECT_EQ(last.form, config.engine.morph->start) << seed;
    swaps += last.swaps_down_total;
    failures += last.failures_total;
  }
  EXPECT_GT(swaps, repetitions(50));
  EXPECT_GT(failures, repetitions(5));
}

// The policy acts on the predicted queue time of requests, before any has waited so long.
TEST(ElasticSimulation, ABurstOfPromptsLowersPrecisionAtOnce) {
  const SimulationConfig config =
      config_of({.speed = Speed::kVnni, .kv_share = 0.8, .token_us = 1000, .step_tokens = 128});
  constexpr int kBurstS = 20;
  std::vector<TraceRequest> trace = {{0, 16, 5000}};  // one request runs all the time
  for (int at_s = 0; at_s < 60; ++at_s) {             // 40 % of the load that bf16 can serve
    for (int i = 0; i < (at_s == kBurstS ? 8 : 1); ++i) {
      trace.push_back({at_s * kNsPerS, 380, 20});
    }
  }
  const SimulationReport report = simulate(config, trace);
  const auto lowered_at = [&](const FormAt& form) {
    return form.status->wanted.layer_precision != config.engine.morph->start.layer_precision;
  };
  const auto seen = std::find_if(report.forms.begin(), report.forms.end(), lowered_at);
  ASSERT_NE(seen, report.forms.end());
  EXPECT_GE(seen->at_ns, kBurstS * kNsPerS);
  EXPECT_LT(seen->at_ns, kBurstS * kNsPerS + 600 * kNsPerMs);
  EXPECT_GT(seen->status->load.expected_wait_ns, 2 * kNsPerS);
  const Outcome found = outcome(report);
  EXPECT_EQ(found.lowerings, 1);
  EXPECT_TRUE(found.back);
}

std::vector<TraceRequest> piece_of(const std::string& file, TimeNs from_ns, double faster) {
  std::vector<TraceRequest> piece;
  for (TraceRequest request : trace_from(test_data(file))) {
    if (request.at_ns >= from_ns && request.at_ns < from_ns + 72 * kNsPerS) {
      request.at_ns = static_cast<TimeNs>(static_cast<double>(request.at_ns - from_ns) / faster);
      piece.push_back(request);
    }
  }
  return piece;
}

// Replays 72 seconds of the Azure traces, accelerated until full precision is saturated.
TEST(ElasticSimulation, PiecesOfRealTracesAreServedSooner) {
  for (const char* name : {"conv", "code"}) {
    const std::string file = fmt::format("traces/azure2023/AzureLLMInferenceTrace_{}.csv", name);
    PROTEAN_REQUIRE_DATA(test_data(file));
    const auto trace = piece_of(file, 20 * 60 * kNsPerS, 1.2);
    ASSERT_GT(trace.size(), 100U);
    const SimulationConfig config = config_of({.kv_share = 0.75});
    const Outcome off = outcome(simulate(fixed(config), trace));
    const Outcome found = outcome(simulate(config, trace));
    EXPECT_LT(found.ttft_p95_s(), off.ttft_p95_s()) << name;
    EXPECT_LE(found.lowerings, 3) << name;
    EXPECT_TRUE(found.back) << name;
  }
}

// Replays BurstGPT 400 times as fast: bursts of dozens of requests after idle times.
TEST(ElasticSimulation, BurstsOfBurstGptAreServedSooner) {
  const auto path = test_data("traces/burstgpt/burstgpt_sample.csv");
  PROTEAN_REQUIRE_DATA(path);
  const auto sample = trace_from(path);
  ASSERT_GT(sample.size(), 40U);
  constexpr std::int64_t kFaster = 400;
  auto trace = repeated(sample, 4 * sample.size());
  for (TraceRequest& request : trace) {
    request.at_ns /= kFaster;
  }
  const SimulationConfig config = config_of({});
  const Outcome off = outcome(simulate(fixed(config), trace));
  const SimulationReport report = simulate(config, trace);
  const Outcome found = outcome(report);
  EXPECT_EQ(report.finished.size(), trace.size());
  EXPECT_GT(found.swaps, 0);
  EXPECT_LT(found.ttft_p95_s(), off.ttft_p95_s());
  EXPECT_LE(found.lowerings, 4) << "one for each repetition of the trace";
  EXPECT_TRUE(found.back);
}

}  // namespace
}  // namespace protean
