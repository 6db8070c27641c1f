#include "server/anthropic/messages_answer.h"

#include "server/test_scenes/dialect_for_test.h"
#include "server/test_scenes/sse_events_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

struct MessagesAnswer : AnswerWriterTest {
  MessagesAnswer() { writer = make(); }
  static std::unique_ptr<AnswerWriter> make() { return make_messages_writer(identity("msg_1"), 3); }
};

TEST_F(MessagesAnswer, StreamsTextAsOneBlock) {
  const auto events = named_events(stream_text());
  const std::vector<std::string> types{
      "message_start",      "content_block_start", "content_block_delta", "content_block_delta",
      "content_block_stop", "message_delta",       "message_stop"};
  ASSERT_EQ(types_of(events), types);
  expect_json(events[0], R"({"type":"message_start","message":{"id":"msg_1","type":"message",
      "role":"assistant","model":"tiny","content":[],"stop_reason":null,"stop_sequence":null,
      "stop_details":null,"container":null,"diagnostics":null,"usage":{"input_tokens":7,
      "cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0,
      "output_tokens_details":null,"server_tool_use":null,"cache_creation":null,
      "inference_geo":null,"service_tier":"standard","speed":null}}})");
  expect_json(events[1], R"({"type":"content_block_start","index":0,
      "content_block":{"type":"text","text":"","citations":null}})");
  expect_json(events[2], R"({"type":"content_block_delta","index":0,
      "delta":{"type":"text_delta","text":"Hel"}})");
  expect_json(events[3], R"({"type":"content_block_delta","index":0,
      "delta":{"type":"text_delta","text":"lo\n\"you\""}})");
  expect_json(events[4], R"({"type":"content_block_stop","index":0})");
  expect_json(events[5], R"({"type":"message_delta","delta":{"stop_reason":"end_turn",
      "stop_sequence":null,"stop_details":null,"container":null},"usage":{"input_tokens":3,
      "cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":3,
      "output_tokens_details":null,"server_tool_use":null}})");
  expect_json(events[6], R"({"type":"message_stop"})");
}

TEST_F(MessagesAnswer, StreamsEachCallAsABlock) {
  const auto events = named_events(stream_calls("toolu_a", "toolu_b"));
  const std::vector<std::string> types{
      "message_start",       "content_block_start", "content_block_delta", "content_block_stop",
      "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
      "content_block_start", "content_block_delta", "content_block_stop",  "message_delta",
      "message_stop"};
  ASSERT_EQ(types_of(events), types);
  expect_json(events[3], R"({"type":"content_block_stop","index":0})");
  expect_json(events[4], R"({"type":"content_block_start","index":1,"content_block":{
      "type":"tool_use","id":"toolu_a","name":"look","input":{},"caller":{"type":"direct"}}})");
  expect_json(events[5], R"({"type":"content_block_delta","index":1,
      "delta":{"type":"input_json_delta","partial_json":"{\"at\":"}})");
  expect_json(events[8].at("index"), "2");
  EXPECT_EQ(events[11].at("delta").at("stop_reason"), "tool_use");
}

TEST_F(MessagesAnswer, WritesAWholeMessage) {
  const AnswerChoice choice{.pieces = {{.parts = {ContentPiece{"Well."}}},
                                       {.parts = {CallBegin{0, "toolu_a", "look"},
                                                  ArgumentsPiece{0, R"({ "at": [1] })"}}}},
                            .end = {.reason = EndReason::kToolCalls}};
  const json::value message = json::parse(writer->whole({{choice}}, kEnd));
  expect_json(message.at("content"), R"([{"type":"text","text":"Well.","citations":null},
      {"type":"tool_use","id":"toolu_a","name":"look","input":{"at":[1]},
       "caller":{"type":"direct"}}])");
  EXPECT_EQ(message.at("stop_reason"), "tool_use");
  EXPECT_EQ(message.at("usage").at("input_tokens"), 3);
  EXPECT_EQ(message.at("usage").at("cache_read_input_tokens"), 4);
  EXPECT_EQ(message.at("usage").at("output_tokens"), 3);
}

TEST_F(MessagesAnswer, KeepsTheOrderOfBlocks) {
  const AnswerChoice choice{
      .pieces = {{.parts = {ContentPiece{"a"}, CallBegin{0, "toolu_a", "look"}}},
                 {.parts = {ArgumentsPiece{0, "{"}, ArgumentsPiece{0, "}"}, ContentPiece{"b"}}},
                 {.parts = {CallBegin{1, "toolu_b", "go"}, ArgumentsPiece{1, "{}"}}}}};
  const json::value message = json::parse(writer->whole({{choice}}, kEnd));
  std::string order;
  for (const json::value& block : message.at("content").as_array()) {
    const bool text = block.at("type") == "text";
    order += block.at(text ? "text" : "name").as_string();
    EXPECT_TRUE(text || block.at("input").as_object().empty());
  }
  EXPECT_EQ(order, "alookbgo");
}

TEST_F(MessagesAnswer, KeepsArgumentsThatWereCutOff) {
  const AnswerChoice choice{
      .pieces = {{.parts = {CallBegin{0, "toolu_a", "look"}, ArgumentsPiece{0, R"({"at": "no)"}}}},
      .end = {.reason = EndReason::kLength}};
  const json::value message = json::parse(writer->whole({{choice}}, kEnd));
  expect_json(message.at("content").at(0).at("input"), R"({"INVALID_JSON":"{\"at\": \"no"})");
  EXPECT_EQ(message.at("stop_reason"), "max_tokens");
}

TEST_F(MessagesAnswer, SaysWhyItStopped) {
  const auto delta = [this](const ChoiceEnd& end, const AnswerUsage& usage) {
    writer = make();
    return named_events(finish(end, usage)).front().at("delta").as_object();
  };
  EXPECT_EQ(delta({.reason = EndReason::kLength}, kEnd)["stop_reason"], "max_tokens");
  AnswerUsage shorter = kEnd;
  shorter.output_tokens = 2;
  EXPECT_EQ(delta({.reason = EndReason::kLength}, shorter)["stop_reason"],
            "model_context_window_exceeded");
  const json::object stopped = delta({.stop_reason = std::string("END\n")}, kEnd);
  EXPECT_EQ(stopped.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(stopped.at("stop_sequence"), "END\n");
}

TEST_F(MessagesAnswer, HasNoBlocksWithoutText) {
  EXPECT_EQ(types_of(named_events(writer->begin(kStart).append(finish({})))),
            (std::vector<std::string>{"message_start", "message_delta", "message_stop"}));
  expect_json(json::parse(make()->whole({{AnswerChoice{}}}, kEnd)).at("content"), "[]");
}

TEST_F(MessagesAnswer, FailsInItsOwnForm) {
  const auto events = named_events(writer->error({.status = 503, .message = "too busy"}));
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].at("error").at("type"), "overloaded_error");
  EXPECT_EQ(events[0].at("error").at("message"), "too busy");
  expect_json(named_events(writer->keep_alive()).at(0), R"({"type":"ping"})");
}

}  // namespace
}  // namespace protean
