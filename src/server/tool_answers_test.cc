// Tests tool calls in answers, streamed and not.

#include "server/test_scenes/service_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

using ToolAnswersTest = ServiceTest;

constexpr const char* kToolCall = R"({"messages":[{"role":"user","content":"x"}],
    "tools":[{"type":"function","function":{"name":"f"}}],"stream":%s})";
constexpr std::string_view kCalls =
    "Hm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

TEST_F(ToolAnswersTest, ToolCallsOfAWholeAnswer) {
  std::string call = kToolCall;
  call.replace(call.find("%s"), 2, "false");
  for (const bool parallel : {true, false}) {
    std::string body = call;
    body.insert(1, parallel ? "" : R"("parallel_tool_calls":false,)");
    body.insert(1, R"("max_tokens":2000,)");
    ServedModel roomy = model();
    roomy.max_model_len = 4000;
    Service other({.max_outstanding = 4}, roomy, {}, environment(), inbox);
    other.set_state(ServerState::kReady);
    const auto answer =
        other.handle({.method = "POST", .target = "/v1/chat/completions", .body = body});
    const auto generation = std::get<std::shared_ptr<GrowingAnswer>>(answer);
    const RequestId id = arrivals().at(0).id;
    other.deliver({.at_ns = 1, .outputs = {Accepted{id}}});
    for (const char c : kCalls) {
      other.deliver({.at_ns = 1, .outputs = {NewToken{id, static_cast<unsigned char>(c)}}});
    }
    EXPECT_EQ(cancels().size(), parallel ? 0U : 1U) << "a second call is not wanted";
    other.deliver(
        {.at_ns = 1,
         .outputs = {finished(id, parallel ? FinishReason::kStop : FinishReason::kCancelled, 9)}});
    const json::value whole = json::parse(generation->take_body());
    const json::value& message = whole.at_pointer("/choices/0/message");
    EXPECT_EQ(message.at("content"), "Hm.");
    ASSERT_EQ(message.at("tool_calls").as_array().size(), parallel ? 2U : 1U);
    const json::value& first = message.at("tool_calls").at(0);
    EXPECT_EQ(first.at_pointer("/function/name"), "f");
    EXPECT_EQ(first.at_pointer("/function/arguments"), R"({"a": 1})");
    EXPECT_TRUE(first.at("id").as_string().starts_with("call_"));
    EXPECT_EQ(whole.at_pointer("/choices/0/finish_reason"), "tool_calls");
    if (parallel) {
      EXPECT_NE(first.at("id"), message.at("tool_calls").at(1).at("id"));
    }
  }
}

TEST_F(ToolAnswersTest, ToolCallsAsDeltas) {
  std::string call = kToolCall;
  call.replace(call.find("%s"), 2, "true");
  const auto generation = generate("/v1/chat/completions", call);
  const RequestId id = arrivals().at(0).id;
  deliver({Accepted{id}});
  tokens(id, kCalls);
  deliver({finished(id, FinishReason::kStop, 9)});
  const auto events = events_of(generation->take_events());
  std::string arguments[2];
  std::string names[2];
  for (const json::value& event : events) {
    const json::value* calls =
        event.is_object()
            ? event.at_pointer("/choices/0/delta").as_object().if_contains("tool_calls")
            : nullptr;
    for (const json::value& one : calls ? calls->as_array() : json::array()) {
      const auto index = static_cast<std::size_t>(one.at("index").as_int64());
      ASSERT_LT(index, 2U);
      arguments[index] += one.at_pointer("/function/arguments").as_string().c_str();
      if (one.as_object().contains("id")) {
        EXPECT_EQ(one.at("type"), "function");
        names[index] += one.at_pointer("/function/name").as_string().c_str();
      }
    }
  }
  EXPECT_EQ(text_of(events), "Hm.");
  EXPECT_EQ(arguments[0], R"({"a": 1})");
  EXPECT_EQ(arguments[1], "{}");
  EXPECT_EQ(names[0] + names[1], "ff") << "a name is sent once";
  EXPECT_EQ(events[events.size() - 2].at_pointer("/choices/0/finish_reason"), "tool_calls");
}

// A stop string or the length limit ends the answer in the middle of a call.
TEST_F(ToolAnswersTest, CallThatIsCutOffIsNotTheFinishReason) {
  const std::string_view calls = kCalls;
  for (const bool stops : {true, false}) {
    const auto generation = generate(
        "/v1/chat/completions",
        fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}],"max_tokens":40,"tools":[
            {{"type":"function","function":{{"name":"f"}}}}]{}}})",
                    stops ? R"(,"stop":["a\": "])" : ""));
    const RequestId id = arrivals().at(0).id;
    deliver({Accepted{id}});
    tokens(id, calls.substr(0, calls.find("1}")));
    deliver({finished(id, FinishReason::kStop, 9)});
    const json::value whole = json::parse(generation->take_body());
    EXPECT_EQ(whole.at_pointer("/choices/0/finish_reason"), "stop");
    EXPECT_EQ(whole.at_pointer("/choices/0/message/tool_calls/0/function/arguments"),
              stops ? "{\"" : "{\"a\": ");
  }
}

TEST_F(ToolAnswersTest, ToolsNeedAToolFormatAndFormatsAnEndToken) {
  ServedModel plain = model();
  plain.tool_format = ToolFormat::kNone;
  plain.formats = nullptr;
  Service other({.max_outstanding = 4}, plain, {}, environment(), inbox);
  other.set_state(ServerState::kReady);
  std::string call = kToolCall;
  call.replace(call.find("%s"), 2, "false");
  const auto param = [&](const char* path, const std::string& body) {
    const auto answer = other.handle({.method = "POST", .target = path, .body = body});
    const HttpReply* reply = std::get_if<HttpReply>(&answer);
    return reply == nullptr ? "accepted" : std::string(error_of(*reply).at("param").as_string());
  };
  EXPECT_EQ(param("/v1/chat/completions", call), "tools");
  EXPECT_EQ(param("/v1/completions", R"({"prompt":"a","guided_regex":"b"})"), "guided_regex");
}

}  // namespace
}  // namespace protean
