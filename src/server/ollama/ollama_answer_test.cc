#include "server/ollama/ollama_answer.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "server/ollama/ollama_call.h"

namespace protean {
namespace {

namespace json = boost::json;

const AnswerIdentity kOllamaIdentity{.id = "ollama-1", .model = "m", .created_s = 1'767'225'600};

AnswerPiece piece_of(std::vector<ToolPiece> parts) {
  return {.parts = std::move(parts), .tokens = {}};
}

TEST(OllamaAnswer, EachStepIsALineAndTheLastHasCountsAndTimes) {
  const auto writer = make_ollama_writer(kOllamaIdentity, OllamaCall::kGenerate);
  EXPECT_EQ(writer->begin({}), "");
  EXPECT_EQ(writer->piece(0, piece_of({ContentPiece{"a\n"}}), {}),
            R"({"model":"m","created_at":"2026-01-01T00:00:00Z","response":"a\n","done":false})"
            "\n");
  EXPECT_EQ(writer->piece(0, {}, {}), "");  // inside a character
  EXPECT_EQ(writer->end_choice(0, {.reason = EndReason::kLength, .stop_reason = {}}, {}), "");
  const AnswerUsage usage{
      .prompt_tokens = 5,
      .output_tokens = 3,
      .times = {.arrived_ns = 10, .scheduled_ns = 20, .first_token_ns = 50, .finished_ns = 100}};
  const json::value last = json::parse(writer->end(usage));
  EXPECT_EQ(last.at("done"), true);
  EXPECT_EQ(last.at("done_reason"), "length");
  EXPECT_EQ(last.at("prompt_eval_count"), 5);
  EXPECT_EQ(last.at("eval_count"), 3);
  EXPECT_EQ(last.at("total_duration"), 90);
  EXPECT_EQ(last.at("prompt_eval_duration"), 30);
  EXPECT_EQ(last.at("eval_duration"), 50);
}

TEST(OllamaAnswer, AToolCallIsWrittenOnceItIsComplete) {
  const auto writer = make_ollama_writer(kOllamaIdentity, OllamaCall::kChat);
  EXPECT_EQ(writer->piece(0, piece_of({CallBegin{0, "c0", "f"}, ArgumentsPiece{0, "{\"a\""}}), {}),
            "");
  EXPECT_EQ(writer->piece(0, piece_of({ArgumentsPiece{0, ":1}"}}), {}), "");
  const json::value next = json::parse(writer->piece(0, piece_of({CallBegin{1, "c1", "g"}}), {}));
  const json::value& call = next.at("message").at("tool_calls").at(0);
  EXPECT_EQ(call.at("function").at("name"), "f");
  EXPECT_EQ(call.at("function").at("arguments").at("a"), 1);
  EXPECT_EQ(next.at("done"), false);
  const json::value cut = json::parse(writer->end_choice(0, {}, {}));
  EXPECT_EQ(cut.at("message").at("tool_calls").at(0).at("function").at("name"), "g");
  EXPECT_EQ(json::parse(writer->end({})).at("message").at("content"), "");
}

TEST(OllamaCall, ResultsAnswerTheCallsBeforeThemByNameAndOrder) {
  const Checked<DialectCall> read = read_ollama_chat(json::parse(R"({"messages":[
    {"role":"user","content":"x"},
    {"role":"assistant","content":"","tool_calls":[
      {"function":{"name":"f","arguments":{}}},{"function":{"name":"g","arguments":{"a":1}}}]},
    {"role":"tool","tool_name":"g","content":"1"},{"role":"tool","content":"2"}]})"));
  ASSERT_TRUE(std::holds_alternative<DialectCall>(read)) << std::get<ApiError>(read).message;
  const GenerationCall& call = std::get<DialectCall>(read).call;
  const json::array& messages = std::get<ChatInput>(call.input).messages;
  const json::value& calls = messages[1].at("tool_calls");
  EXPECT_EQ(messages[2].at("tool_call_id"), calls.at(1).at("id"));
  EXPECT_EQ(messages[3].at("tool_call_id"), calls.at(0).at("id"));
  EXPECT_TRUE(call.stream.enabled);
}

TEST(OllamaCall, ABodyWithoutQuestionLoadsTheModel) {
  EXPECT_NE(ollama_load_answer(R"({"model":"m"})", 0)->find("\"load\""), std::string::npos);
  EXPECT_NE(ollama_load_answer(R"({"messages":[],"keep_alive":0})", 0)->find("\"unload\""),
            std::string::npos);
  EXPECT_EQ(ollama_load_answer(R"({"prompt":"x"})", 0), std::nullopt);
  EXPECT_EQ(ollama_load_answer("[]", 0), std::nullopt);
  EXPECT_EQ(ollama_load_answer("{", 0), std::nullopt);
}

}  // namespace
}  // namespace protean
