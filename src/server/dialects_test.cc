// Tests the Messages and Responses APIs over HTTP with an engine that echoes prompts.

#include <string>
#include <vector>

#include "server/test_scenes/server_for_test.h"
#include "server/test_scenes/sse_events_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view kEcho = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";

struct DialectsTest : ServerTest {
  // Returns the events of a stream that ends with one of type `last`.
  std::vector<json::object> stream(const std::string& path, const std::string& body,
                                   const std::string& last) {
    Client client(server->port());
    client.post(path, body);
    const std::string text = client.read_until("\r\n0\r\n\r\n");
    EXPECT_NE(text.find("event: " + last), std::string::npos) << text;
    std::string events;  // a chunk is a line with its size, whole lines and an empty line
    for (std::size_t at = text.find("\r\n\r\n") + 4; at < text.size();) {
      const std::size_t size = std::stoul(text.substr(at), nullptr, 16);
      at = text.find("\r\n", at) + 2;
      events += text.substr(at, size);
      at += size + 2;
    }
    return named_events(events);
  }
  static std::string message(const std::string& fields) {
    return R"({"max_tokens":200,"messages":[{"role":"user","content":"Hello"}])" + fields + "}";
  }
  static void expect_anthropic_error(const Response& response, unsigned status,
                                     std::string_view type) {
    EXPECT_EQ(response.result_int(), status) << response.body();
    const json::value body = body_of(response);
    EXPECT_EQ(body.at("type"), "error");
    EXPECT_EQ(body.at("error").at("type").as_string(), type);
    EXPECT_FALSE(body.at("error").at("message").as_string().empty());
    EXPECT_EQ(body.at("request_id").as_string(), std::string_view(response["request-id"]));
    EXPECT_EQ(response["request-id"], response["x-request-id"]);
  }
};

TEST_F(DialectsTest, AnswersAMessage) {
  start();
  const Response response = post("/v1/messages", message(""));
  ASSERT_EQ(response.result_int(), 200U) << response.body();
  const json::value body = body_of(response);
  EXPECT_EQ(body.at("content").at(0).at("text").as_string(), kEcho);
  EXPECT_EQ(body.at("stop_reason"), "end_turn");
  EXPECT_EQ(body.at("model"), "echo");
  EXPECT_EQ(body.at("usage").at("input_tokens"), kEcho.size());
  EXPECT_EQ(body.at("id").as_string(), "msg_" + std::string(response["request-id"]));
}

TEST_F(DialectsTest, StreamsAMessageUpToAStopSequence) {
  start();
  const auto events =
      stream("/v1/messages", message(R"(,"stream":true,"stop_sequences":["end"])"), "message_stop");
  std::string text;
  for (const json::object& event : events) {
    if (event.at("type") == "content_block_delta") {
      text += std::string_view(event.at("delta").at("text").as_string());
    }
  }
  EXPECT_EQ(text, kEcho.substr(0, kEcho.find("end")));
  ASSERT_GE(events.size(), 2U);
  const json::value& delta = events[events.size() - 2].at("delta");
  EXPECT_EQ(delta.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(delta.at("stop_sequence"), "end");
}

TEST_F(DialectsTest, CountsTokens) {
  start();
  const Response response =
      post("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"Hello"}]})");
  EXPECT_EQ(response.body(), R"({"input_tokens":)" + std::to_string(kEcho.size()) + "}");
}

TEST_F(DialectsTest, ErrorsOfMessagesHaveAnthropicsForm) {
  const std::vector<std::string> keys{"sesame"};
  options.keys = ApiKeys(keys);
  start();
  const auto ask = [&](const std::string& line, const std::string& key, const std::string& body) {
    Client client(server->port());
    client.send(line + " HTTP/1.1\r\nHost: localhost\r\nx-api-key: " + key +
                "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.read();
  };
  const std::string path = "POST /v1/messages";
  const std::string count = "POST /v1/messages/count_tokens";
  expect_anthropic_error(ask(path, "guess", "{}"), 401, "authentication_error");
  expect_anthropic_error(ask("GET /v1/messages", "sesame", ""), 405, "invalid_request_error");
  expect_anthropic_error(ask(path, "sesame", "{"), 400, "invalid_request_error");
  expect_anthropic_error(ask(path, "sesame", "[]"), 400, "invalid_request_error");
  expect_anthropic_error(ask(path, "sesame", "{}"), 400, "invalid_request_error");
  expect_anthropic_error(ask(path, "sesame", message(R"(,"model":"claude")")), 404,
                         "not_found_error");
  expect_anthropic_error(ask(count, "sesame", message(R"(,"model":"claude")")), 404,
                         "not_found_error");
  expect_anthropic_error(ask(count, "sesame", "7"), 400, "invalid_request_error");
  engine->refuse_with(Error{ErrorCode::kUnavailable, "no room"});
  expect_anthropic_error(ask(path, "sesame", message("")), 503, "overloaded_error");
}

TEST_F(DialectsTest, AnswersAResponse) {
  start();
  const Response response = post("/v1/responses", R"({"input":"Hello"})");
  ASSERT_EQ(response.result_int(), 200U) << response.body();
  const json::value body = body_of(response);
  EXPECT_EQ(body.at("output").at(0).at("content").at(0).at("text").as_string(), kEcho);
  EXPECT_EQ(body.at("status"), "completed");
  expect_error(post("/v1/responses", "{}"), 400);
  expect_error(post("/v1/responses", R"({"input":"Hello","model":"gpt-4"})"), 404);
}

TEST_F(DialectsTest, StreamsAResponse) {
  start();
  const auto events =
      stream("/v1/responses", R"({"input":"Hello","stream":true,"max_output_tokens":9})",
             "response.incomplete");
  std::string text;
  for (const json::object& event : events) {
    if (event.at("type") == "response.output_text.delta") {
      text += std::string_view(event.at("delta").as_string());
    }
  }
  EXPECT_EQ(text, kEcho.substr(0, 9));
  EXPECT_EQ(events.back().at("response").at("usage").at("output_tokens"), 9);
}

// A long request that is repeated once does not count as text that the client fails to read.
TEST_F(DialectsTest, RepeatedRequestMayExceedTheUnsentLimit) {
  options.http.max_unsent_bytes = 4096;
  start();
  const std::string long_text(200'000, 'x');
  const auto events = stream("/v1/responses",
                             R"({"input":"Hello","stream":true,"max_output_tokens":2,)"
                             R"("instructions":")" +
                                 long_text + "\"}",
                             "response.incomplete");
  ASSERT_GT(events.size(), 2U);
  for (const std::size_t i : {std::size_t{0}, events.size() - 1}) {
    EXPECT_EQ(events[i].at("response").at("instructions").as_string(), long_text);
  }
  const Response tokens = post("/tokenize", R"({"content":")" + long_text + "\"}");
  ASSERT_EQ(tokens.result_int(), 200U);
  EXPECT_EQ(body_of(tokens).at("count"), long_text.size());
}

TEST_F(DialectsTest, TokensAreShownWithTheirTextsUpToABound) {
  start();
  const std::string many((std::size_t{1} << 18) + 1, 'x');
  const Response all = post("/tokenize", R"({"content":")" + many + "\"}");
  EXPECT_EQ(body_of(all).at("count"), many.size());
  for (const char* field : {"with_pieces", "return_token_strs"}) {
    const Response refused =
        post("/tokenize", fmt::format(R"({{"{}":true,"content":"{}"}})", field, many));
    EXPECT_EQ(refused.result_int(), 400U);
    EXPECT_EQ(body_of(refused).at_pointer("/error/param"), field);
  }
}

TEST_F(DialectsTest, ModelsHaveTheFieldsOfBothApis) {
  start();
  const json::value list = body_of(get("/v1/models"));
  EXPECT_EQ(list.at("has_more"), false);
  EXPECT_EQ(list.at("data").at(0).at("object"), "model");
  EXPECT_EQ(list.at("data").at(0).at("type"), "model");
  EXPECT_EQ(list.at("data").at(0).at("created_at"), "1970-01-01T00:00:01Z");
}

}  // namespace
}  // namespace protean
