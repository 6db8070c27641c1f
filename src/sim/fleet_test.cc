// Tests whole clusters of replicas in virtual time.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "base/test_data.h"
#include "sim/report_text_for_test.h"
#include "sim/simulation.h"
#include "sim/traces_for_test.h"

namespace protean {
namespace {

constexpr RouterPolicy kRouters[] = {RouterPolicy::kFirstToken, RouterPolicy::kFreeness,
                                     RouterPolicy::kLeastLoaded, RouterPolicy::kRoundRobin};

SimulationConfig cluster(int replicas, RouterPolicy router) {
  return {.engine = {.scheduler = {.kv_blocks = 400,
                                   .block_tokens = 16,
                                   .max_num_seqs = 32,
                                   .max_num_batched_tokens = 512,
                                   .max_model_len = 2048}},
          .replicas = replicas,
          .dispatch = {router},
          .step_cost = {.fixed_us = 5000, .token_us = 50, .context_token_us = 0.01}};
}

std::vector<TraceRequest> random_trace(unsigned seed, std::size_t count, double gap_ms) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> gap(1 / gap_ms);
  std::lognormal_distribution<double> prompt(5.0, 1.0);
  std::lognormal_distribution<double> output(4.0, 0.8);
  std::vector<TraceRequest> trace(count);
  double at_ms = 0;
  for (TraceRequest& request : trace) {
    at_ms += gap(random);
    request = {static_cast<TimeNs>(at_ms * kNsPerMs), 1 + static_cast<int>(prompt(random)),
               1 + static_cast<int>(output(random))};
  }
  return trace;
}

double mean_ttft_ms(const SimulationReport& report) {
  double sum = 0;
  double count = 0;
  for (const FinishedRequest& request : report.finished) {
    if (request.times.first_token_ns >= 0) {
      sum += static_cast<double>(request.times.first_token_ns - request.times.arrived_ns);
      ++count;
    }
  }
  return sum / count / static_cast<double>(kNsPerMs);
}

TEST(FleetSimulation, EveryRouterEndsEveryRequestAndRepeatsItsBytes) {
  for (const RouterPolicy router : kRouters) {
    SimulationConfig config = cluster(4, router);
    config.cancel_probability = 0.1;
    const auto trace = random_trace(3, 800, 20);
    const SimulationReport report = simulate(config, trace);
    EXPECT_EQ(report.finished.size() + static_cast<std::size_t>(report.refused), trace.size());
    EXPECT_EQ(report.final.kv_blocks_used + report.final.kv_blocks_awaited, 0);
    EXPECT_EQ(report.final.adopted_total, report.final.released_total);
    for (const Observation& replica : report.replicas) {
      EXPECT_GT(replica.accepted_total, 0) << to_string(router);
    }
    EXPECT_EQ(to_csv(report), to_csv(simulate(config, trace)));
  }
}

// Lengths differ, so replicas that take turns are loaded unequally.
TEST(FleetSimulation, ThePredictedFirstTokenComesSoonest) {
  std::map<RouterPolicy, double> ttft_ms;
  for (const unsigned seed : {1U, 2U, 3U}) {
    const auto trace = random_trace(seed, 3'000, 10);
    for (const RouterPolicy router : kRouters) {
      ttft_ms[router] += mean_ttft_ms(simulate(cluster(4, router), trace)) / 3;
    }
  }
  for (const RouterPolicy router : kRouters) {
    RecordProperty(fmt::format("ttft_ms_{}", to_string(router)),
                   fmt::format("{:.1f}", ttft_ms[router]));
    EXPECT_LE(ttft_ms[RouterPolicy::kFirstToken], ttft_ms[router]) << to_string(router);
  }
}

// Thousands of moves while requests decode: every request ends with all its tokens, no prompt is
// computed again for a move, and the run repeats.
TEST(FleetSimulation, RequestsThatMoveWithTheirKvEndAsOthersDo) {
  SimulationConfig config = cluster(4, RouterPolicy::kFirstToken);
  const auto trace = random_trace(4, 3'000, 15);
  const SimulationReport still = simulate(config, trace);
  config.migration_probability = 0.5;
  const SimulationReport moved = simulate(config, trace);
  EXPECT_GT(moved.final.adopted_with_kv_total, 1'000);
  RecordProperty("migrations", std::to_string(moved.final.adopted_with_kv_total));
  ASSERT_EQ(moved.finished.size(), still.finished.size());
  EXPECT_EQ(moved.final.output_tokens_total, still.final.output_tokens_total);
  EXPECT_EQ(moved.final.prompt_tokens_total, still.final.prompt_tokens_total);
  EXPECT_EQ(moved.final.kv_blocks_used, 0);
  for (const FinishedRequest& request : moved.finished) {
    EXPECT_EQ(request.reason, FinishReason::kLength);
  }
  EXPECT_EQ(to_csv(moved), to_csv(simulate(config, trace)));
}

// KV of one replica runs short while others have some.
TEST(FleetSimulation, MovesByLoadSparePreemptions) {
  std::map<MigratePolicy, std::int64_t> preemptions;
  for (const unsigned seed : {5U, 6U, 7U}) {
    const auto trace = random_trace(seed, 2'000, 24);
    for (const MigratePolicy policy : {MigratePolicy::kOff, MigratePolicy::kLoad}) {
      SimulationConfig config = cluster(4, RouterPolicy::kFirstToken);
      config.dispatch.migrate = policy;
      config.engine.scheduler.kv_blocks = 160;
      const SimulationReport report = simulate(config, trace);
      EXPECT_EQ(report.finished.size(), trace.size());
      EXPECT_EQ(report.final.kv_blocks_used, 0);
      EXPECT_EQ(report.final.adopted_with_kv_total > 0, policy == MigratePolicy::kLoad);
      preemptions[policy] += report.final.preemptions_total;
    }
  }
  EXPECT_LT(10 * preemptions[MigratePolicy::kLoad], 7 * preemptions[MigratePolicy::kOff]);
}

// PROTEAN_SIM_REQUESTS sets another number of requests, fewer for instrumented builds. Arrivals
// come 64 times as fast as in the trace, which was recorded on one deployment.
TEST(FleetSimulation, TheAzureConversationTraceOn64ReplicasRunsTwiceWithIdenticalBytes) {
  const auto path = test_data("traces/azure2023/AzureLLMInferenceTrace_conv.csv");
  PROTEAN_REQUIRE_DATA(path);
  const char* wanted = std::getenv("PROTEAN_SIM_REQUESTS");
  auto requests =
      repeated(trace_from(path), wanted != nullptr ? std::stoul(wanted) : std::size_t{5'000});
  for (TraceRequest& request : requests) {
    request.at_ns /= 64;
  }
  const SimulationConfig config{
      .engine = {.scheduler = {.kv_blocks = 2000,
                               .block_tokens = 16,
                               .max_num_seqs = 256,
                               .max_num_batched_tokens = 4096,
                               .max_model_len = 16384}},
      .replicas = 64,
      .step_cost = {.fixed_us = 12000, .token_us = 20, .context_token_us = 0.004},
      .seed = 1,
      .cancel_probability = 0.02};
  const SimulationReport first = simulate(config, requests);
  EXPECT_EQ(first.finished.size(), requests.size());
  EXPECT_EQ(first.final.kv_blocks_used, 0);
  for (const Observation& replica : first.replicas) {
    EXPECT_GT(replica.accepted_total, 0);
  }
  EXPECT_TRUE(to_csv(first) == to_csv(simulate(config, requests)));
}

}  // namespace
}  // namespace protean
