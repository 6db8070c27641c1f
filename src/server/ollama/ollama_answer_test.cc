#include "server/ollama/ollama_answer.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <utility>
#include <vector>

#include "server/ollama/keep_alive.h"
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

// Each second result names its tool, and so answers a later call than the oldest one.
TEST(OllamaCall, ResultsWithAndWithoutNamesAnswerManyCalls) {
  constexpr std::size_t kCalls = 100;
  json::array calls;
  json::array messages;
  for (std::size_t i = 0; i < kCalls; ++i) {
    const char* name = i < kCalls / 2 ? "f" : "g";
    json::object function{{"name", name}, {"arguments", json::object{}}};
    calls.push_back(json::object{{"function", std::move(function)}});
  }
  messages.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(calls)}});
  for (std::size_t i = 0; i < kCalls; ++i) {
    messages.push_back({{"role", "tool"}, {"content", "1"}});
    if (i % 2 == 1) {
      messages.back().as_object().emplace("tool_name", "g");
    }
  }
  const Checked<DialectCall> read =
      read_ollama_chat(json::object{{"messages", std::move(messages)}});
  ASSERT_TRUE(std::holds_alternative<DialectCall>(read)) << std::get<ApiError>(read).message;
  const GenerationCall& call = std::get<DialectCall>(read).call;
  const json::array& paired = std::get<ChatInput>(call.input).messages;
  const json::array& named = paired.at(0).at("tool_calls").as_array();
  for (std::size_t i = 0; i < kCalls; ++i) {
    const std::size_t answered = i % 2 == 1 ? (kCalls + i) / 2 : i / 2;
    ASSERT_EQ(paired.at(i + 1).at("tool_call_id"), named.at(answered).at("id")) << i;
  }
}

TEST(OllamaCall, ABodyWithoutQuestionLoadsTheModel) {
  const auto load = [](std::string_view body) {
    return std::get<OllamaLoad>(read_ollama_load(body, 0).value());
  };
  EXPECT_NE(load(R"({"model":"m"})").answer.find("\"load\""), std::string::npos);
  EXPECT_EQ(load(R"({"model":"m"})").keep_loaded_ns, std::nullopt);
  EXPECT_NE(load(R"({"messages":[],"keep_alive":0})").answer.find("\"unload\""), std::string::npos);
  EXPECT_EQ(load(R"({"messages":[],"keep_alive":-1})").keep_loaded_ns, kForeverNs);
  EXPECT_TRUE(std::holds_alternative<ApiError>(
      read_ollama_load(R"({"messages":[],"keep_alive":"soon"})", 0).value()));
  EXPECT_EQ(load(R"({"model":"m:latest"})").model, "m");
  EXPECT_EQ(load("{}").model, "");
  EXPECT_EQ(std::get<ApiError>(read_ollama_load(R"({"model":5})", 0).value()).param, "model");
  EXPECT_FALSE(read_ollama_load(R"({"prompt":"x"})", 0));
  EXPECT_FALSE(read_ollama_load("[]", 0));
  EXPECT_FALSE(read_ollama_load("{", 0));
}

TEST(OllamaCall, KeepAliveIsReadAsOllamaDoes) {
  constexpr TimeNs kMinuteNs = 60 * kNsPerS;
  const std::vector<std::pair<const char*, std::optional<TimeNs>>> cases = {
      {"0", 0},
      {"90", 90 * kNsPerS},
      {"1.5", 3 * kNsPerS / 2},
      {"-1", kForeverNs},
      {"1e30", kForeverNs},
      {R"("0")", 0},
      {R"("0s")", 0},
      {R"("5m")", 5 * kMinuteNs},
      {R"("1h30m")", 90 * kMinuteNs},
      {R"("1.5h")", 90 * kMinuteNs},
      {R"("+2s")", 2 * kNsPerS},
      {R"("250ms")", kNsPerS / 4},
      {R"("3us")", 3 * kNsPerUs},
      {R"("7ns")", 7},
      {R"("-5m")", kForeverNs},
      {R"("-0s")", 0},
      {R"("5")", std::nullopt},
      {R"("m")", std::nullopt},
      {R"("")", std::nullopt},
      {R"("-")", std::nullopt},
      {R"("--1s")", std::nullopt},
      {R"("1s-1s")", std::nullopt},
      {R"("5 m")", std::nullopt},
      {R"("nans")", std::nullopt},
      {R"("infs")", std::nullopt},
      {"true", std::nullopt},
      {"[]", std::nullopt},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(read_keep_alive(boost::json::parse(text)), expected) << text;
  }
}

}  // namespace
}  // namespace protean
