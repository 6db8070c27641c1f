#include "trace/trace.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

Trace parsed(std::string_view text) {
  auto trace = parse_trace(text, "file");
  EXPECT_TRUE(trace.ok()) << (trace.ok() ? "" : trace.error().message);
  return trace.ok() ? *std::move(trace) : Trace{};
}

std::string error_of(std::string_view text) {
  const auto trace = parse_trace(text, "file");
  return trace.ok() ? "no error" : trace.error().message;
}

TEST(Trace, Azure) {
  const Trace trace = parsed(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
      "2023-11-16 18:17:05.0000000,7,8");
  EXPECT_EQ(trace.format, TraceFormat::kAzure);
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].at_ns, 0);
  EXPECT_EQ(trace.requests[1].at_ns, 1'020'040'000);
  EXPECT_EQ(trace.requests[0].input_tokens, 4808);
  EXPECT_EQ(trace.requests[1].output_tokens, 8);
}

TEST(Trace, AzureOutOfOrderWithZones) {
  const Trace trace = parsed(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01+00:00,1,2\n"
      "2024-05-10 01:00:00.5+01:00,3,4\n2024-05-10T00:00:02.25Z,5,6\n");
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_EQ(trace.requests[0].input_tokens, 3);
  EXPECT_EQ(trace.requests[1].at_ns, kNsPerS / 2);
  EXPECT_EQ(trace.requests[2].at_ns, kNsPerS + 750 * kNsPerMs);
  EXPECT_EQ(trace.notes.size(), 1U);
}

TEST(Trace, BurstGptLeavesOutFailedRequests) {
  const Trace trace = parsed(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,10,0,10,API log\n"
      "46.25,GPT-4,10,3,13,API log\n");
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[1].at_ns, 41'250 * kNsPerMs);
  ASSERT_EQ(trace.notes.size(), 1U);
  EXPECT_NE(trace.notes[0].find("left out 1 rows"), std::string::npos);
}

TEST(Trace, MooncakeKeepsHashIds) {
  const Trace trace =
      parsed(R"({"timestamp": 27, "input_length": 600, "output_length": 52, "hash_ids": [3, 4]})"
             "\n"
             R"({"timestamp": 30, "input_length": 10, "output_length": 1, "hash_ids": [3]})"
             "\n");
  EXPECT_EQ(trace.format, TraceFormat::kMooncake);
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[1].at_ns, 3 * kNsPerMs);
  EXPECT_EQ(trace.requests[0].prefix_blocks, (std::vector<std::int64_t>{3, 4}));
}

TEST(Trace, RecordingsHoldTheRequestsThatEnded) {
  const Trace trace = parsed(
      R"({"protean_recording":1,"from":1700000000,"to":1700000060,"state":{}})"
      "\n"
      R"({"t":1700000009,"event":"request","data":{"arrived":1700000004.5,"prompt_tokens":9,"output_tokens":3}})"
      "\n"
      R"({"t":1700000010,"event":"state","data":{"form":{"kv_blocks":7}}})"
      "\n"
      R"({"t":1700000012,"event":"request","data":{"arrived":1700000003,"prompt_tokens":8,"output_tokens":2}})"
      "\n"
      R"({"t":1700000012,"event":"request","data":{"arrived":1700000003,"prompt_tokens":8,"output_tokens":0}})");
  EXPECT_EQ(trace.format, TraceFormat::kRecording);
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].input_tokens, 8);
  EXPECT_EQ(trace.requests[1].at_ns, kNsPerS * 3 / 2);
  EXPECT_EQ(trace.notes.size(), 1U) << "one was empty; the order is no surprise";
}

TEST(Trace, LengthsHaveNoTimes) {
  const Trace trace =
      parsed("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n");
  EXPECT_FALSE(has_arrivals(trace));
  EXPECT_EQ(trace.requests.front().output_tokens, 918);
}

TEST(Trace, BurstGptAggregatesBecomeRates) {
  const Trace trace = parsed(
      R"({"week1_min": [{"t": 0, "tps": 30}, {"t": 3, "tps": 60}], "daily": [{"req": 10, "tok": 150}]})");
  EXPECT_FALSE(has_lengths(trace));
  ASSERT_EQ(trace.clients.size(), 1U);
  ASSERT_EQ(trace.clients[0].rates.size(), 2U);
  EXPECT_DOUBLE_EQ(trace.clients[0].rates[0].requests_per_s, 2);
  EXPECT_EQ(trace.clients[0].rates[1].at_ns, 180 * kNsPerS);
}

TEST(Trace, ServeGenClient) {
  const auto client = parse_servegen_client(
      {.name = "c",
       .trace_name = "c-trace.csv",
       .trace = "0,2.5,31.7,Weibull,0.27,0.1\n600,0,0,,0,0\n1200,4,1,Gamma,0.99,0.02\n",
       .dataset_name = "c-dataset.json",
       .dataset =
           R"({"0": {"input_tokens": "{13: 0.25, 14: 0.75}", "output_tokens": "{1: 2.0}"}})"});
  ASSERT_TRUE(client.ok()) << client.error().message;
  ASSERT_EQ(client->rates.size(), 3U);
  EXPECT_EQ(client->rates[0].gaps, GapDistribution::kWeibull);
  EXPECT_EQ(client->rates[2].duration_ns, 600 * kNsPerS);
  EXPECT_EQ(client->rates[1].requests_per_s, 0);
  EXPECT_EQ(client->lengths[0].input.cumulative, (std::vector<double>{0.25, 1}));
}

TEST(Trace, ErrorsNameFileAndLine) {
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const std::string burstgpt =
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "file: the file is empty"},
      {"a,b\n1,2\n", "file: line 1: 'a,b' is not the first line of a known trace format"},
      {azure + "2023-11-16 18:17:03.97,1,2\n\nyesterday,1,2\n", "file: line 4: 'yesterday'"},
      {azure + "2023-13-16 18:17:03.97,1,2\n", "file: line 2: "},
      {azure + "2023-11-16 18:17:03.97,1\n", "file: line 2: the row has 2 fields, the header 3"},
      {azure + "2023-11-16 18:17:03.97,-1,5\n", "file: line 2: '-1' is not a number of tokens"},
      {azure + "2023-11-16 18:17:03.97,1e300,5\n", "file: line 2: '1e300'"},
      {azure, "file: the trace has no requests"},
      {azure + "9999-11-30 23:59:59.9,1,2\n", "file: line 2: '9999-11-30 23:59:59.9'"},
      {burstgpt + "-5,GPT-4,4,1,5,API log\n", "file: line 2: '-5' is not a time"},
      {burstgpt + "99999999999,GPT-4,4,1,5,API log\n", "file: line 2: '99999999999' is not a time"},
      {burstgpt + "5,4,1,5\n", "file: line 2: the row has 4 fields, the header 6"},
      {"{\"timestamp\": 1, \"input_length\": 5}\n", "file: line 1: \"output_length\""},
      {"{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5}\n{\"timestamp\n",
       "file: line 2: "},
      {"{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [1, 2]}",
       "file: line 1: 2 hash_ids are too many for 5 input tokens"},
      {"{\"protean_recording\":1}\n{\"event\":\"request\",\"data\":{\"arrived\":-1}}",
       "file: line 2: \"arrived\" must be a time in seconds since 1970"},
      {"{\"protean_recording\":1}\n{\"event\":\"request\"}",
       "file: line 2: a request needs an object \"data\""},
      {"{\"week1_min\": 3}", "\"week1_min\" is missing"},
      {"{\n\"week1_min\": [\n", "file: line "},
      {"num_prefill_tokens,num_decode_tokens\n5,many\n", "file: line 2: 'many'"}};
  for (const auto& [text, words] : cases) {
    EXPECT_NE(error_of(text).find(words), std::string::npos) << error_of(text) << "\nfor " << text;
  }
}

TEST(Trace, ServeGenErrorsNameFileAndLine) {
  const std::string dataset =
      "{\n\"0\": {\"input_tokens\": \"{1: 1}\", \"output_tokens\": \"{1: 1}\"},\n\"600\": 5}";
  const std::string good = R"({"0": {"input_tokens": "{1: 1}", "output_tokens": "{1: 1}"}})";
  const auto error = [&](const std::string& trace, const std::string& lengths) {
    const auto client = parse_servegen_client({"c", "T", trace, "D", lengths});
    return client.ok() ? "no error" : client.error().message;
  };
  EXPECT_TRUE(error("0,1,1,Gamma,1,1\n", dataset).starts_with("D: line 3: "));
  EXPECT_TRUE(error("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", good).starts_with("T: line 2: "));
  EXPECT_TRUE(error("0,1,1,Pareto,1,1\n", good).starts_with("T: line 1: 'Pareto'"));
  EXPECT_TRUE(error("0,1,1,Weibull,0,1\n", good).starts_with("T: line 1: '0' is not a shape"));
  EXPECT_TRUE(
      error("0,1e6,1,Gamma,1,1\n", good).starts_with("T: the window at 0 s states 600000000"));
  EXPECT_TRUE(error("0,1,1\n", good).starts_with("T: line 1: the line has 3 fields"));
  EXPECT_TRUE(error("0,1,1,Gamma,1,1\n", R"({"0": {"input_tokens": "{}", "output_tokens": "{}"}})")
                  .starts_with("D: line 1: no window"));
  EXPECT_EQ(error("0,1,1,Gamma,1,1\n", good), "no error");
}

}  // namespace
}  // namespace protean
