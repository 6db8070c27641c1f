#include "server/responses/responses_answer.h"

#include "server/test_scenes/byte_tokenizer_for_test.h"
#include "server/test_scenes/dialect_for_test.h"
#include "server/test_scenes/sse_events_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

struct ResponsesAnswer : AnswerWriterTest {
  ResponsesAnswer() {
    writer = make_responses_writer(identity("resp_1"), tokenizer, {.fields = R"("top_p":0.5)"});
  }
  static void expect_numbered(const std::vector<json::object>& events) {
    for (std::size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i].at("sequence_number"), i);
    }
  }

  ByteTokenizer tokenizer;
};

TEST_F(ResponsesAnswer, StreamsTextAsOneMessage) {
  const auto events = named_events(stream_text());
  const std::vector<std::string> types{"response.created",           "response.in_progress",
                                       "response.output_item.added", "response.content_part.added",
                                       "response.output_text.delta", "response.output_text.delta",
                                       "response.output_text.done",  "response.content_part.done",
                                       "response.output_item.done",  "response.completed"};
  ASSERT_EQ(types_of(events), types);
  expect_numbered(events);
  expect_json(events[1], R"({"type":"response.in_progress","sequence_number":1,"response":{
      "id":"resp_1","object":"response","created_at":5,"model":"tiny","status":"in_progress",
      "error":null,"incomplete_details":null,"output":[],"usage":null,"top_p":0.5}})");
  expect_json(events[2], R"({"type":"response.output_item.added","sequence_number":2,
      "output_index":0,"item":{"type":"message","id":"msg_1_0","status":"in_progress",
      "role":"assistant","content":[]}})");
  expect_json(events[3], R"({"type":"response.content_part.added","sequence_number":3,
      "item_id":"msg_1_0","output_index":0,"content_index":0,"part":{"type":"output_text",
      "annotations":[],"logprobs":[],"text":""}})");
  expect_json(events[4], R"({"type":"response.output_text.delta","sequence_number":4,
      "item_id":"msg_1_0","output_index":0,"content_index":0,"delta":"Hel","logprobs":[]})");
  expect_json(events[6], R"({"type":"response.output_text.done","sequence_number":6,
      "item_id":"msg_1_0","output_index":0,"content_index":0,"text":"Hello\n\"you\"",
      "logprobs":[]})");
  expect_json(events[7], R"({"type":"response.content_part.done","sequence_number":7,
      "item_id":"msg_1_0","output_index":0,"content_index":0,"part":{"type":"output_text",
      "annotations":[],"logprobs":[],"text":"Hello\n\"you\""}})");
  const json::value& item = events[8].at("item");
  EXPECT_EQ(item.at("status"), "completed");
  expect_json(events[9], R"({"type":"response.completed","sequence_number":9,"response":{
      "id":"resp_1","object":"response","created_at":5,"model":"tiny","status":"completed",
      "error":null,"incomplete_details":null,"top_p":0.5,"usage":{"input_tokens":7,
      "input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},"output_tokens":3,
      "output_tokens_details":{"reasoning_tokens":0},"total_tokens":10},
      "output":[)" + json::serialize(item) +
                             "]}}");
}

TEST_F(ResponsesAnswer, StreamsEachCallAsAnItem) {
  const auto events = named_events(stream_calls("call_a", "call_b"));
  const std::vector<std::string> types{"response.created",
                                       "response.in_progress",
                                       "response.output_item.added",
                                       "response.content_part.added",
                                       "response.output_text.delta",
                                       "response.output_text.done",
                                       "response.content_part.done",
                                       "response.output_item.done",
                                       "response.output_item.added",
                                       "response.function_call_arguments.delta",
                                       "response.function_call_arguments.delta",
                                       "response.function_call_arguments.done",
                                       "response.output_item.done",
                                       "response.output_item.added",
                                       "response.function_call_arguments.delta",
                                       "response.function_call_arguments.done",
                                       "response.output_item.done",
                                       "response.completed"};
  ASSERT_EQ(types_of(events), types);
  expect_numbered(events);
  expect_json(events[8], R"({"type":"response.output_item.added","sequence_number":8,
      "output_index":1,"item":{"type":"function_call","id":"fc_1_1","call_id":"call_a",
      "name":"look","arguments":"","status":"in_progress"}})");
  expect_json(events[9], R"({"type":"response.function_call_arguments.delta",
      "sequence_number":9,"item_id":"fc_1_1","output_index":1,"delta":"{\"at\":"})");
  expect_json(events[11], R"({"type":"response.function_call_arguments.done",
      "sequence_number":11,"item_id":"fc_1_1","output_index":1,"name":"look",
      "arguments":"{\"at\":\"x\"}"})");
  const json::array& output = events[17].at("response").at("output").as_array();
  ASSERT_EQ(output.size(), 3U);
  expect_json(output[2], R"({"type":"function_call","id":"fc_1_2","call_id":"call_b",
      "name":"run","arguments":"{}","status":"completed"})");
}

TEST_F(ResponsesAnswer, IsIncompleteWhenCutOff) {
  writer->begin(kStart);
  writer->piece(0, text("Once"), kStart);
  const auto events = named_events(finish({.reason = EndReason::kLength}));
  EXPECT_EQ(events[2].at("item").at("status"), "incomplete");
  EXPECT_EQ(events[3].at("type"), "response.incomplete");
  const json::value& response = events[3].at("response");
  EXPECT_EQ(response.at("status"), "incomplete");
  expect_json(response.at("incomplete_details"), R"({"reason":"max_output_tokens"})");
}

TEST_F(ResponsesAnswer, IsAnEmptyMessageWithoutText) {
  writer->begin(kStart);
  const auto events = named_events(finish({}));
  const json::value& output = events.back().at("response").at("output");
  EXPECT_EQ(output.at(0).at("content").at(0).at("text"), "");
}

TEST_F(ResponsesAnswer, WritesAWholeResponse) {
  const AnswerChoice choice{
      .pieces = {{.parts = {ContentPiece{"Well."}}},
                 {.parts = {CallBegin{0, "call_a", "look"}, ArgumentsPiece{0, R"({"at":1})"}}}},
      .end = {.reason = EndReason::kToolCalls}};
  const json::value response = json::parse(writer->whole({{choice}}, kEnd));
  EXPECT_EQ(response.at("status"), "completed");
  EXPECT_EQ(response.at("usage").at("total_tokens"), 10);
  expect_json(response.at("output"), R"([{"type":"message","id":"msg_1_0","status":"completed",
      "role":"assistant","content":[{"type":"output_text","annotations":[],"logprobs":[],
      "text":"Well."}]},{"type":"function_call","id":"fc_1_1","call_id":"call_a","name":"look",
      "arguments":"{\"at\":1}","status":"completed"}])");
}

// The items are words, a call, words.
TEST_F(ResponsesAnswer, KeepsTheOrderOfItems) {
  const AnswerChoice choice{
      .pieces = {{.parts = {ContentPiece{"Well."}}},
                 {.parts = {CallBegin{0, "call_a", "look"}, ArgumentsPiece{0, R"({"at":1})"}}},
                 {.parts = {ContentPiece{"So."}}}},
      .end = {.reason = EndReason::kLength}};
  const json::value response = json::parse(writer->whole({{choice}}, kEnd));
  const json::array& items = response.at("output").as_array();
  ASSERT_EQ(items.size(), 3U);
  EXPECT_EQ(items[0].at_pointer("/content/0/text"), "Well.");
  EXPECT_EQ(items[1].at("type"), "function_call");
  EXPECT_EQ(items[1].at("status"), "completed");
  EXPECT_EQ(items[2].at_pointer("/content/0/text"), "So.");
  EXPECT_EQ(items[2].at("status"), "incomplete");
}

TEST_F(ResponsesAnswer, ACallIsIncompleteOnlyIfItsArgumentsAre) {
  for (const bool whole : {true, false}) {
    writer = make_responses_writer(identity("resp_1"), tokenizer, {.fields = R"("a":1)"});
    const AnswerChoice choice{
        .pieces = {{.parts = {CallBegin{0, "call_a", "look"},
                              ArgumentsPiece{0, whole ? R"({"at":1})" : R"({"at)"}}}},
        .end = {.reason = EndReason::kLength}};
    const json::value response = json::parse(writer->whole({{choice}}, kEnd));
    EXPECT_EQ(response.at("status"), "incomplete");
    EXPECT_EQ(response.at("output").at(0).at("status"), whole ? "completed" : "incomplete");
  }
}

TEST_F(ResponsesAnswer, ReportsTokensWithTheirText) {
  writer = make_responses_writer(identity("resp_1"), tokenizer,
                                 {.fields = R"("a":1)", .logprobs = true, .top_logprobs = 1});
  const auto token = [](char c, float logprob) {
    return AnswerToken{c, TokenLogprobs{.logprob = logprob, .top = {{'x', -0.25F}, {'y', -2.0F}}}};
  };
  writer->begin(kStart);
  std::string stream = writer->piece(0, {.tokens = {token('H', -0.5F)}}, kStart);
  EXPECT_EQ(stream, "");
  AnswerPiece both = text("Hi");
  both.tokens = {token('i', -1.5F)};
  stream = writer->piece(0, both, kStart);
  stream += writer->piece(
      0, {.parts = {CallBegin{0, "call_a", "go"}}, .tokens = {token('(', -1.0F)}}, kStart);
  stream += finish({.reason = EndReason::kToolCalls});
  const auto events = named_events(stream);
  const std::string top = R"("top_logprobs":[{"token":"x","logprob":-0.25,"bytes":[120]}]})";
  const std::string logprobs = R"([{"token":"H","logprob":-0.5,"bytes":[72],)" + top +
                               R"(,{"token":"i","logprob":-1.5,"bytes":[105],)" + top + "]";
  EXPECT_EQ(events[2].at("type"), "response.output_text.delta");
  for (const json::value& told :
       {events[2].at("logprobs"), events[3].at("logprobs"), events[4].at("part").at("logprobs")}) {
    expect_json(told, logprobs);
  }
}

TEST_F(ResponsesAnswer, FailsWithAnEventAndAResponse) {
  writer->begin(kStart);
  writer->piece(0, text("Once"), kStart);
  const auto events =
      named_events(writer->error({.status = 500, .message = "the answer failed: \"why\""}));
  ASSERT_EQ(types_of(events), (std::vector<std::string>{"error", "response.failed"}));
  EXPECT_EQ(events[0].at("message"), "the answer failed: \"why\"");
  EXPECT_EQ(events[0].at("code"), "server_error");
  EXPECT_TRUE(events[0].at("param").is_null());
  EXPECT_EQ(events[1].at("response").at("status"), "failed");
  expect_json(events[1].at("response").at("error"),
              R"({"code":"server_error","message":"the answer failed: \"why\""})");
}

}  // namespace
}  // namespace protean
