#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <tuple>

#include "base/test_data.h"
#include "sim/report_text_for_test.h"
#include "sim/simulation.h"
#include "sim/traces_for_test.h"

namespace protean {
namespace {

SimulationConfig small_config() {
  return {.engine = {.scheduler = {.kv_blocks = 60,
                                   .block_tokens = 16,
                                   .max_num_seqs = 16,
                                   .max_num_batched_tokens = 64,
                                   .max_model_len = 512}},
          .step_cost = {.fixed_us = 1000, .token_us = 10}};
}

TEST(Simulation, TimesFollowTheCostModel) {
  const std::vector<TraceRequest> trace = {{0, 100, 3}};
  const SimulationReport report = simulate(small_config(), trace);
  ASSERT_EQ(report.finished.size(), 1U);
  const FinishedRequest& finished = report.finished[0];
  EXPECT_EQ(finished.reason, FinishReason::kLength);
  // Two chunks (64 and 36 tokens), then two decodes.
  EXPECT_EQ(finished.times.first_token_ns, (2 * 1000 + 100 * 10) * kNsPerUs);
  EXPECT_EQ(finished.times.finished_ns, (4 * 1000 + 102 * 10) * kNsPerUs);
}

TEST(Simulation, AStepAfterALongPauseTakesLonger) {
  SimulationConfig config = small_config();
  config.step_cost.wake_us = 500;
  const auto ttft_us = [&](TimeNs pause_ns) {
    const TimeNs second_ns = kNsPerS + pause_ns;
    const SimulationReport report =
        simulate(config, std::vector<TraceRequest>{{kNsPerS, 60, 1}, {second_ns, 60, 1}});
    return (report.finished[1].times.first_token_ns - second_ns) / kNsPerUs;
  };
  const TimeNs first_ends_ns = (1000 + 600 + 500) * kNsPerUs;  // awake before the pause
  EXPECT_NEAR(ttft_us(first_ends_ns), 1600, 15);
  EXPECT_NEAR(ttft_us(10 * kNsPerS), 2100, 5);
}

TEST(Simulation, SharedPrefixesAreComputedOnce) {
  SimulationConfig config = small_config();
  config.shared_prefix_tokens = 64;
  const SimulationReport report =
      simulate(config, std::vector<TraceRequest>{{0, 100, 2}, {kNsPerS, 100, 2}});
  EXPECT_EQ(report.finished[0].usage.cached_tokens, 0);
  EXPECT_EQ(report.finished[1].usage.cached_tokens, 64);
}

TEST(Simulation, BlocksOfATraceThatAreEqualAreComputedOnce) {
  SimulationConfig config = small_config();
  config.prefix_block_tokens = 32;
  const std::vector<TraceRequest> trace = {
      {0, 100, 2, {7, 8}}, {kNsPerS, 100, 2, {7, 9}}, {2 * kNsPerS, 100, 2, {7, 8}}};
  const SimulationReport report = simulate(config, trace);
  EXPECT_EQ(report.finished[1].usage.cached_tokens, 32);
  EXPECT_EQ(report.finished[2].usage.cached_tokens, 64);
}

TEST(Simulation, AClosedLoopSendsTheNextRequestWhenOneEnds) {
  SimulationConfig config = small_config();
  config.max_concurrency = 1;
  config.keep_token_times = true;
  const SimulationReport report =
      simulate(config, std::vector<TraceRequest>{{0, 40, 3}, {0, 40, 3}, {kNsPerS, 40, 3}});
  ASSERT_EQ(report.finished.size(), 3U);
  const auto& [first, second, third] =
      std::tie(report.finished[0], report.finished[1], report.finished[2]);
  EXPECT_EQ(second.times.arrived_ns, first.times.finished_ns);
  EXPECT_EQ(third.times.arrived_ns, kNsPerS) << "it was not due before";
  ASSERT_EQ(second.tokens_ns.size(), 3U);
  EXPECT_EQ(second.tokens_ns.front(), second.times.first_token_ns);
  EXPECT_EQ(second.tokens_ns.back(), second.times.finished_ns);
}

TEST(Simulation, RequestsBeyondTheServersLimitAreRefused) {
  SimulationConfig config = small_config();
  config.max_outstanding = 2;
  const SimulationReport report = simulate(
      config, std::vector<TraceRequest>{{0, 40, 3}, {0, 40, 3}, {0, 40, 3}, {kNsPerS, 40, 3}});
  EXPECT_EQ(report.finished.size(), 3U);
  ASSERT_EQ(report.refusals.size(), 1U);
  EXPECT_EQ(report.refusals[0].request, 3U);
  EXPECT_EQ(report.refused, 1);
}

// Random arrivals, lengths, cancels and KV sizes, many of them too small: every request ends, and
// no KV block stays in use.
TEST(Simulation, RandomTracesLeakNothing) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    std::mt19937 random(seed);
    std::vector<TraceRequest> trace(300);
    TimeNs at_ns = 0;
    for (TraceRequest& request : trace) {
      at_ns += random() % (20 * kNsPerMs);
      request = {at_ns, static_cast<std::int64_t>(random() % 400),
                 static_cast<std::int64_t>(random() % 80)};
    }
    SimulationConfig config = small_config();
    config.seed = seed;
    config.cancel_probability = 0.3;
    config.shared_prefix_tokens = static_cast<int>(random() % 100);
    config.engine.scheduler.kv_blocks = 24 + static_cast<std::int64_t>(random() % 60);
    config.engine.max_in_flight = 1 + static_cast<int>(random() % 3);
    const SimulationReport report = simulate(config, trace);
    EXPECT_EQ(report.finished.size() + static_cast<std::size_t>(report.refused), trace.size());
    EXPECT_EQ(report.final.kv_blocks_used, 0);
    EXPECT_EQ(report.final.running + report.final.waiting, 0);
    EXPECT_GT(report.final.preemptions_total, 0) << seed;
    EXPECT_EQ(to_csv(report), to_csv(simulate(config, trace)));
  }
}

// PROTEAN_SIM_REQUESTS sets another number of requests, fewer for instrumented builds.
TEST(Simulation, TheAzureConversationTraceRunsTwiceWithIdenticalBytes) {
  const auto path = test_data("traces/azure2023/AzureLLMInferenceTrace_conv.csv");
  PROTEAN_REQUIRE_DATA(path);
  const auto trace = trace_from(path);
  EXPECT_EQ(trace.size(), 19366U);
  const char* wanted = std::getenv("PROTEAN_SIM_REQUESTS");
  const auto requests = repeated(trace, wanted != nullptr ? std::stoul(wanted) : trace.size());
  const SimulationConfig config{
      .engine = {.scheduler = {.kv_blocks = 2000,
                               .block_tokens = 16,
                               .max_num_seqs = 256,
                               .max_num_batched_tokens = 4096,
                               .max_model_len = 16384}},
      .step_cost = {.fixed_us = 12000, .token_us = 20, .context_token_us = 0.004},
      .seed = 1,
      .cancel_probability = 0.02};
  const SimulationReport first = simulate(config, requests);
  EXPECT_EQ(first.finished.size(), requests.size());
  EXPECT_EQ(first.final.kv_blocks_used, 0);
  EXPECT_GT(first.final.preemptions_total, 0);
  EXPECT_TRUE(to_csv(first) == to_csv(simulate(config, requests)));
}

}  // namespace
}  // namespace protean
