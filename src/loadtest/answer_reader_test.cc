#include "loadtest/answer_reader.h"

#include <gtest/gtest.h>

#include "loadtest/answer_chunk.h"
#include "loadtest/endpoint.h"
#include "loadtest/random.h"
#include "loadtest/server_metrics.h"

namespace protean::loadtest {
namespace {

std::string chunked(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
         "Transfer-Encoding: chunked\r\n\r\n" +
         fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", body.size(), body);
}

const char* text_chunk() {
  return "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
}

// Feeds the pieces of an answer one millisecond apart.
RequestRecord read(const std::vector<std::string>& pieces) {
  RequestRecord record{.sent_ns = 0, .planned_input_tokens = 5};
  AnswerReader reader(record);
  TimeNs now_ns = 0;
  for (const std::string& piece : pieces) {
    now_ns += kNsPerMs;
    if (!reader.feed(piece, now_ns)) {
      return record;
    }
  }
  reader.closed(now_ns);
  return record;
}

TEST(AnswerReader, TimesAChatAndPrefersUsage) {
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
  const RequestRecord record =
      read({head, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"a b\"}}]}\n", "\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,"
            "\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n",
            "data: [DONE]\n\n"});
  EXPECT_EQ(record.outcome, Outcome::kCompleted) << record.error;
  EXPECT_DOUBLE_EQ(ttft_ms(record), 3) << "the role is not a token, reasoning is";
  EXPECT_DOUBLE_EQ(tpot_ms(record), 2.0 / 3) << "4 tokens in 2 chunks, 2 ms apart";
  EXPECT_EQ(record.itl_ms, std::vector<float>{2});
  EXPECT_DOUBLE_EQ(e2e_ms(record), 8);
  EXPECT_EQ(record.input_tokens, 9);
  EXPECT_EQ(record.cached_tokens, 8);
  EXPECT_EQ(record.finish_reason, "stop");
}

TEST(AnswerReader, CountsChunksWithoutUsage) {
  const RequestRecord record =
      read({chunked(std::string(text_chunk()) + text_chunk() + text_chunk() + "data: [DONE]\n\n")});
  EXPECT_EQ(record.outcome, Outcome::kCompleted);
  EXPECT_EQ(record.output_tokens, 3);
  EXPECT_EQ(record.input_tokens, 5) << "the planned length";
  EXPECT_FALSE(record.has_usage);
}

TEST(AnswerReader, TokensWithoutTextHaveATime) {
  const RequestRecord record = read(
      {chunked("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
               "data: {\"choices\":[],\"usage\":{\"completion_tokens\":1}}\n\ndata: [DONE]\n\n")});
  EXPECT_EQ(record.outcome, Outcome::kCompleted) << record.error;
  EXPECT_GT(record.first_token_ns, 0);
  EXPECT_EQ(record.output_tokens, 1);
}

TEST(AnswerReader, AnswersDoNotDependOnPieces) {
  const std::string bytes = chunked(std::string(text_chunk()) + ": ping\n\n" + text_chunk() +
                                    "data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\n"
                                    "data: [DONE]\n\n");
  Random random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> pieces;
    for (std::string_view rest = bytes; !rest.empty(); rest.remove_prefix(pieces.back().size())) {
      pieces.emplace_back(rest.substr(0, static_cast<std::size_t>(random.integer(1, 30))));
    }
    const RequestRecord record = read(pieces);
    ASSERT_EQ(record.outcome, Outcome::kCompleted) << record.error;
    ASSERT_EQ(record.chunks, 2);
    ASSERT_EQ(record.output_tokens, 7);
    ASSERT_EQ(record.itl_ms.size(), 1U);
  }
}

TEST(AnswerReader, AnEmptyChunkedBodyMayArriveByteByByte) {
  std::vector<std::string> pieces;
  for (const char byte : std::string("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                     "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")) {
    pieces.emplace_back(1, byte);
  }
  EXPECT_NE(read(pieces).error.find("ended without [DONE]"), std::string::npos);
}

TEST(AnswerReader, EveryIncompleteAnswerIsBroken) {
  const std::string bytes = chunked(std::string(text_chunk()) + text_chunk());
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const Outcome outcome = read({bytes.substr(0, size)}).outcome;
    EXPECT_EQ(outcome, size == 0 ? Outcome::kConnectError : Outcome::kBrokenStream) << size;
  }
}

TEST(AnswerChunk, FindsTheMessageOfAnyError) {
  EXPECT_EQ(error_message_of(R"({"error":{"message":"a","code":400}})"), "a");
  EXPECT_EQ(error_message_of(R"({"error":"b"})"), "b");
  EXPECT_EQ(error_message_of(R"({"object":"error","message":"c"})"), "c");
  EXPECT_EQ(error_message_of(R"({"detail":"d"})"), "d");
  EXPECT_EQ(error_message_of("<html>e</html>"), "<html>e</html>");
  EXPECT_FALSE(parse_answer_chunk("[1]").ok());
  EXPECT_FALSE(parse_answer_chunk("{\"choices\":[}").ok());
  EXPECT_TRUE(
      parse_answer_chunk(R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})")->has_text);
  EXPECT_FALSE(parse_answer_chunk(R"({"choices":5,"usage":null,"error":null})")->has_choice);
}

TEST(Endpoint, ReadsUrls) {
  const auto local = parse_server_url("http://127.0.0.1:8000");
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(local->host, "127.0.0.1");
  EXPECT_EQ(local->port, "8000");
  EXPECT_EQ(local->host_header, "127.0.0.1:8000");
  const auto proxy = parse_server_url("https://[::1]/api/v1/");
  ASSERT_TRUE(proxy.ok());
  EXPECT_TRUE(proxy->tls);
  EXPECT_EQ(proxy->host, "::1");
  EXPECT_EQ(proxy->port, "443");
  EXPECT_EQ(proxy->base_path, "/api");
  for (const char* wrong :
       {"", "localhost:8000", "ftp://a", "http://", "http://u:p@a", "http://a/?b"}) {
    EXPECT_FALSE(parse_server_url(wrong).ok()) << wrong;
  }
}

TEST(Endpoint, BuildsRequestsThatCannotBeSplit) {
  RequestTemplate request{.server = *parse_server_url("http://h:1/x"), .model = "m"};
  ASSERT_TRUE(set_endpoint(request, "chat").ok());
  EXPECT_EQ(request.path, "/x/v1/chat/completions");
  EXPECT_FALSE(set_endpoint(request, "/v1/embeddings").ok());
  EXPECT_FALSE(set_endpoint(request, "/a b/completions").ok());
  EXPECT_FALSE(set_api_key(request, "a\r\nHost: b").ok());
  EXPECT_FALSE(add_header(request, "a=b\r\nc: d").ok());
  EXPECT_FALSE(add_header(request, "nothing").ok());
  EXPECT_FALSE(set_extra_body(request, "[]").ok());
  ASSERT_TRUE(set_api_key(request, "key").ok());
  ASSERT_TRUE(add_header(request, "X-A=1").ok());
  ASSERT_TRUE(set_extra_body(request, R"({"temperature":0.5,"top_k":3})").ok());
  const PromptWriter prompts({}, 1);
  const std::string body = planned_body(request, prompts, {.input_tokens = 2, .output_tokens = 9});
  EXPECT_NE(body.find("\"max_completion_tokens\":9"), std::string::npos) << body;
  EXPECT_NE(body.find("\"temperature\":5E-1"), std::string::npos) << body;
  EXPECT_NE(body.find("\"include_usage\":true"), std::string::npos) << body;
  const std::string message = post_request(request, body, "id-1");
  EXPECT_TRUE(message.starts_with("POST /x/v1/chat/completions HTTP/1.1\r\nHost: h:1\r\n"));
  EXPECT_NE(message.find("Authorization: Bearer key\r\nX-A: 1\r\n"), std::string::npos);
}

TEST(ServerMetrics, ReadsVllmNames) {
  const ServerMetrics found = parse_server_metrics(
      "# HELP vllm:kv_cache_usage_perc x\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"
      "vllm:kv_cache_usage_perc{engine=\"1\",a=\"}\\\"{\"} 0.7\nvllm:gpu_cache_usage_perc 0.9\n"
      "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4 "
      "1700000\n"
      "vllm:time_to_first_token_seconds_sum 2.5\nvllm:time_to_first_token_seconds_count 5\n"
      "vllm:num_requests_waiting{\nother 1\n");
  EXPECT_DOUBLE_EQ(*found.kv_use, 0.6);
  EXPECT_EQ(found.running, 7);
  EXPECT_FALSE(found.waiting.has_value());
  EXPECT_EQ(found.ttft_sum_s, 2.5);
  EXPECT_FALSE(has_any(parse_server_metrics("process_cpu_seconds_total 5\n")));
}

}  // namespace
}  // namespace protean::loadtest
