#include "server/operators/tracer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <string>
#include <utility>
#include <vector>

namespace protean {
namespace {

constexpr std::string_view kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const auto kCount = [n = std::uint64_t{0}]() mutable { return ++n; };

TEST(TraceContext, ContinuesWellFormedTracesAndBeginsOthersAnew) {
  const TraceContext given = trace_context(kParent, kCount);
  EXPECT_EQ(given.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(given.parent_id, "b7ad6b7169203331");
  EXPECT_TRUE(given.sampled);
  std::string unsampled(kParent);
  unsampled.back() = '2';
  EXPECT_FALSE(trace_context(unsampled, kCount).sampled);
  for (const char* bad : {"", "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                          "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
                          "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                          "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                          "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                          "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"}) {
    const TraceContext fresh = trace_context(bad, kCount);
    EXPECT_EQ(fresh.trace_id.size(), 32U) << bad;
    EXPECT_EQ(fresh.parent_id, "") << bad;
    EXPECT_TRUE(fresh.sampled);
  }
  EXPECT_EQ(trace_context("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra", kCount)
                .parent_id,
            given.parent_id);
}

TEST(OtlpEndpoint, IsAnHttpAddress) {
  const auto plain = parse_otlp_endpoint("http://collector:4318");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->path, "/v1/traces");
  EXPECT_EQ(plain->port, "4318");
  EXPECT_EQ(parse_otlp_endpoint("http://[::1]/x/traces")->host, "::1");
  EXPECT_EQ(parse_otlp_endpoint("http://a:1/x/traces")->path, "/x/traces");
  for (const char* bad : {"", "collector:4318", "https://a:4318", "http://"}) {
    EXPECT_FALSE(parse_otlp_endpoint(bad).ok()) << bad;
  }
}

TEST(Spans, CoverQueuePrefillAndDecode) {
  AnswerRecord record{.id = "cmpl-1", .model = "m", .received_ns = 100};
  add_choice(record, "stop", {.prompt_tokens = 3, .output_tokens = 2},
             {.arrived_ns = 110, .scheduled_ns = 150, .first_token_ns = 200, .finished_ns = 300});
  add_choice(record, "length", {.prompt_tokens = 3, .output_tokens = 4},
             {.arrived_ns = 111, .scheduled_ns = 140, .first_token_ns = 210, .finished_ns = 400});
  const TraceContext trace{.trace_id = "t", .parent_id = "p"};
  const auto spans =
      boost::json::parse(fmt::format("[{}]", spans_json(record, trace, 1000, kCount)));
  ASSERT_EQ(spans.as_array().size(), 4U);
  EXPECT_EQ(spans.at_pointer("/0/parentSpanId"), "p");
  EXPECT_EQ(spans.at_pointer("/0/startTimeUnixNano"), "1100");
  EXPECT_EQ(spans.at_pointer("/0/endTimeUnixNano"), "1400");
  const std::pair<const char*, std::pair<const char*, const char*>> table[] = {
      {"queue", {"1100", "1140"}}, {"prefill", {"1140", "1200"}}, {"decode", {"1200", "1400"}}};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& span = spans.as_array()[i + 1];
    EXPECT_EQ(span.at("name"), table[i].first);
    EXPECT_EQ(span.at("startTimeUnixNano"), table[i].second.first);
    EXPECT_EQ(span.at("endTimeUnixNano"), table[i].second.second);
    EXPECT_EQ(span.at("parentSpanId"), spans.at_pointer("/0/spanId"));
  }
  // A request that was refused in the queue was never scheduled.
  AnswerRecord refused{.received_ns = 100};
  add_choice(refused, "abort", {}, {.arrived_ns = 110, .finished_ns = 130});
  const auto only = boost::json::parse(fmt::format("[{}]", spans_json(refused, trace, 0, kCount)));
  ASSERT_EQ(only.as_array().size(), 2U);
  EXPECT_EQ(only.at_pointer("/1/endTimeUnixNano"), "130");
}

}  // namespace
}  // namespace protean
