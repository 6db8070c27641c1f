#include "loadtest/trace_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_data.h"

namespace protean::loadtest {
namespace {

TEST(TraceFile, ReadsEveryPublishedTrace) {
  const auto folder = test_data("traces");
  PROTEAN_REQUIRE_DATA(folder);
  const std::pair<const char*, std::size_t> files[] = {
      {"azure2023/AzureLLMInferenceTrace_conv.csv", 19366},
      {"azure2023/AzureLLMInferenceTrace_code.csv", 8819},
      {"azure2024/azure_llm_2024_sample.csv", 5880},
      {"mooncake/conversation_trace.jsonl", 12031},
      {"mooncake/synthetic_trace.jsonl", 3993}};
  for (const auto& [name, count] : files) {
    const auto trace = read_trace(folder / name);
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_EQ(trace->requests.size(), count) << name;
    EXPECT_TRUE(std::is_sorted(trace->requests.begin(), trace->requests.end(),
                               [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; }));
  }
  for (const char* name :
       {"burstgpt/burstgpt_sample.csv", "lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        "lengths/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"}) {
    const auto trace = read_trace(folder / name);
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_GT(trace->requests.size(), 50U);
  }
  EXPECT_EQ(read_trace(folder / "burstgpt/burstgpt_aggregates.json")->clients[0].rates.size(),
            6366U);
  const auto clients = read_trace(folder / "servegen/language-m-small");
  ASSERT_TRUE(clients.ok()) << clients.error().message;
  EXPECT_EQ(clients->clients.size(), 5U);
  EXPECT_EQ(clients->clients[0].rates.size(), 2016U);
  EXPECT_EQ(clients->clients[0].name, "chunk-12");
  EXPECT_EQ(clients->clients[0].lengths.size(), 56U);
}

}  // namespace
}  // namespace protean::loadtest
