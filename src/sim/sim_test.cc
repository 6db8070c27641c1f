#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "base/test_data.h"
#include "sim/simulation.h"
#include "sim/trace.h"

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

TEST(Trace, ReadsAzureLines) {
  const auto trace = parse_azure_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-30 23:59:59.9000000,374,44\r\n"
      "2023-12-01 00:00:00.1500000,396,109");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->size(), 2U);
  EXPECT_EQ((*trace)[1].at_ns, 250 * kNsPerMs);
  EXPECT_EQ((*trace)[1].prompt_tokens, 396);
  EXPECT_EQ((*trace)[1].output_tokens, 109);
  const auto repeated = repeat_trace(*trace, 5);
  EXPECT_EQ(repeated[4].at_ns, 500 * kNsPerMs);
  EXPECT_EQ(repeated[4].prompt_tokens, 374);
}

TEST(Trace, ReadsBurstGptLines) {
  const auto trace = parse_burstgpt_trace(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45,GPT-4,1087,0,1087,API log\n"
      "118,GPT-4,417,276,693,Conversation log\n");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->size(), 2U) << "one got no answer";
  EXPECT_EQ((*trace)[0].at_ns, 0);
  EXPECT_EQ((*trace)[1].at_ns, 113 * kNsPerS);
  EXPECT_EQ((*trace)[1].prompt_tokens, 417);
  EXPECT_EQ((*trace)[1].output_tokens, 276);
  for (const char* wrong : {"", "header\n", "h\n5,ChatGPT", "h\n5,ChatGPT,4,-1,3,x",
                            "h\n-5,ChatGPT,4,1,5,x", "h\n5,4,1,5", "h\n99999999999,m,4,1,5,x"}) {
    EXPECT_FALSE(parse_burstgpt_trace(wrong).ok()) << wrong;
  }
}

TEST(Trace, RefusesWhatIsNotATrace) {
  for (const char* wrong :
       {"", "header\n", "h\nx,1,2", "h\n2023-11-30 23:59:59.9,374", "h\n2023-11-30 23:59:59.9,-1,2",
        "h\n2023-13-30 23:59:59.9,1,2", "h\n9999-11-30 23:59:59.9,1,2",
        "h\n2023-11-30 23:59:59.9,1,99999999999"}) {
    EXPECT_FALSE(parse_azure_trace(wrong).ok()) << wrong;
  }
}

TEST(Simulation, TimesFollowTheCostModel) {
  const std::vector<TraceRequest> trace = {{0, 100, 3}};
  const SimulationReport report = simulate(small_config(), trace);
  ASSERT_EQ(report.finished.size(), 1U);
  const RequestRecord& record = report.finished[0];
  EXPECT_EQ(record.reason, FinishReason::kLength);
  // Two chunks (64 and 36 tokens), then two decodes.
  EXPECT_EQ(record.times.first_token_ns, (2 * 1000 + 100 * 10) * kNsPerUs);
  EXPECT_EQ(record.times.finished_ns, (4 * 1000 + 102 * 10) * kNsPerUs);
}

TEST(Simulation, SharedPrefixesAreComputedOnce) {
  SimulationConfig config = small_config();
  config.shared_prefix_tokens = 64;
  const SimulationReport report =
      simulate(config, std::vector<TraceRequest>{{0, 100, 2}, {kNsPerS, 100, 2}});
  EXPECT_EQ(report.finished[0].usage.cached_tokens, 0);
  EXPECT_EQ(report.finished[1].usage.cached_tokens, 64);
}

// Random arrivals, lengths, cancels and pool sizes, many of them too small: all ends well.
TEST(Simulation, RandomTracesLeakNothing) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    std::mt19937 random(seed);
    std::vector<TraceRequest> trace(300);
    TimeNs at_ns = 0;
    for (TraceRequest& request : trace) {
      at_ns += random() % (20 * kNsPerMs);
      request = {at_ns, static_cast<int>(random() % 400), static_cast<int>(random() % 80)};
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

// PROTEAN_SIM_REQUESTS sets a smaller number for instrumented builds.
TEST(Simulation, TheAzureConversationTraceRunsTwiceWithIdenticalBytes) {
  const auto path = test_data("traces/azure2023/AzureLLMInferenceTrace_conv.csv");
  PROTEAN_REQUIRE_DATA(path);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const auto trace = parse_azure_trace(text.view());
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace->size(), 19366U);
  const char* wanted = std::getenv("PROTEAN_SIM_REQUESTS");
  const auto requests = repeat_trace(*trace, wanted != nullptr ? std::stoul(wanted) : 100'000);
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
