#include "server/anthropic/messages_call.h"

#include <boost/json/serialize.hpp>

#include "server/test_scenes/byte_tokenizer_for_test.h"
#include "server/test_scenes/dialect_for_test.h"
#include "server/test_scenes/sse_events_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view kHello = R"([{"role":"user","content":"Hello"}])";

// Returns a body with max_tokens and these fields.
std::string body(std::string_view fields) {
  return R"({"max_tokens":8,)" + std::string(fields) + "}";
}
std::string message_with(std::string_view fields) {
  return body(std::string(fields) + R"(,"messages":)" + std::string(kHello));
}

DialectCall read(const std::string& text) {
  return read_call(read_messages_call, text);
}
json::array messages(const std::string& list) {
  return chat_of(read(body(R"("messages":)" + list))).messages;
}

TEST(MessagesCall, ReadsTheFieldsOfAllDialects) {
  const GenerationCall call =
      read(message_with(R"("model":"tiny","temperature":0.5,"top_p":0.75,"top_k":9,"stream":true,
                   "stop_sequences":["END","\n\n"],"metadata":{"user_id":"u"},
                   "thinking":{"type":"disabled"},"cache_control":{"type":"ephemeral"},
                   "service_tier":"auto","speed":"standard","mcp_servers":[])"))
          .call;
  EXPECT_EQ(call.model, "tiny");
  EXPECT_EQ(call.sampling.temperature, 0.5F);
  EXPECT_EQ(call.sampling.top_p, 0.75F);
  EXPECT_EQ(call.sampling.top_k, 9);
  EXPECT_EQ(call.max_tokens, 8);
  EXPECT_TRUE(call.cut_at_context);
  EXPECT_TRUE(call.stream.enabled);
  EXPECT_EQ(call.stop.strings, (std::vector<std::string>{"END", "\n\n"}));
  EXPECT_FALSE(call.tools.offered());
}

TEST(MessagesCall, TurnsMessagesIntoAChat) {
  expect_json(chat_of(read(body(R"("system":[{"type":"text","text":"Be kind."},
                  {"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],
                  "messages":[{"role":"user","content":"Hi"}])")))
                  .messages,
              R"([{"role":"system","content":"Be kind.\nBe brief."},
                  {"role":"user","content":"Hi"}])");
  expect_json(messages(R"([{"role":"user","content":[{"type":"text","text":"a"},
                            {"type":"text","text":"b"}]},{"role":"user","content":"c"},
                           {"role":"assistant","content":"d"},{"role":"user","content":"e"}])"),
              R"([{"role":"user","content":"a\nb\nc"},{"role":"assistant","content":"d"},
                  {"role":"user","content":"e"}])");
}

TEST(MessagesCall, TurnsToolBlocksIntoCallsAndResults) {
  expect_json(messages(R"([{"role":"user","content":"What is it like?"},
          {"role":"assistant","content":[{"type":"text","text":"Let me see."},
            {"type":"tool_use","id":"t1","name":"see","input":{"at":["x"]}},
            {"type":"tool_use","id":"t2","name":"feel","input":{}}]},
          {"role":"user","content":[
            {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"red"},
              {"type":"text","text":"round"}]},
            {"type":"tool_result","tool_use_id":"t2","is_error":true,"content":"no hand"},
            {"type":"text","text":"So?"}]}])"),
              R"([{"role":"user","content":"What is it like?"},
          {"role":"assistant","content":"Let me see.","tool_calls":[
            {"id":"t1","type":"function","function":{"name":"see","arguments":"{\"at\":[\"x\"]}"}},
            {"id":"t2","type":"function","function":{"name":"feel","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"t1","content":"red\nround"},
          {"role":"tool","tool_call_id":"t2","content":"Error: no hand"},
          {"role":"user","content":"So?"}])");
  // The assistant has no text, and the result no content.
  expect_json(messages(R"([{"role":"user","content":"Go"},
          {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"go","input":{}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}])"),
              R"([{"role":"user","content":"Go"},{"role":"assistant","content":null,"tool_calls":[
            {"id":"t","type":"function","function":{"name":"go","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"t","content":""}])");
}

TEST(MessagesCall, ContinuesAnAnswerThatWasBegun) {
  const std::string question = R"([{"role":"user","content":"Sun?"},)";
  const DialectCall begun =
      read(body(R"("messages":)" + question + R"({"role":"assistant","content":"It is ("}])"));
  EXPECT_TRUE(chat_of(begun).continue_final_message);
  EXPECT_FALSE(chat_of(begun).add_generation_prompt);
  const DialectCall empty =
      read(body(R"("messages":)" + question + R"({"role":"assistant","content":""}])"));
  EXPECT_FALSE(chat_of(empty).continue_final_message);
  EXPECT_TRUE(chat_of(empty).add_generation_prompt);
  EXPECT_EQ(chat_of(empty).messages.size(), 1U);
}

constexpr std::string_view kTools = R"("tools":[{"name":"see","description":"Looks.",
    "input_schema":{"type":"object","properties":{"at":{"type":"string"}}},"strict":true,
    "cache_control":{"type":"ephemeral"}},
    {"type":"custom","name":"go","input_schema":{"type":"object"}}])";

ToolFields tools(const std::string& choice) {
  return read(message_with(std::string(kTools) + choice)).call.tools;
}

TEST(MessagesCall, ReadsTools) {
  const ToolFields offered = tools("");
  expect_json(offered.tools, R"([{"type":"function","function":{"name":"see",
      "description":"Looks.","parameters":{"type":"object","properties":{"at":{"type":"string"}}},
      "strict":true}},
      {"type":"function","function":{"name":"go","parameters":{"type":"object"}}}])");
  EXPECT_EQ(offered.choice, ToolChoice::kAuto);
  EXPECT_TRUE(offered.parallel);
}

TEST(MessagesCall, ReadsTheChoiceOfTools) {
  EXPECT_EQ(tools(R"(,"tool_choice":{"type":"auto"})").choice, ToolChoice::kAuto);
  EXPECT_EQ(tools(R"(,"tool_choice":{"type":"none"})").choice, ToolChoice::kNone);
  const ToolFields any = tools(R"(,"tool_choice":{"type":"any","disable_parallel_tool_use":true})");
  EXPECT_EQ(any.choice, ToolChoice::kRequired);
  EXPECT_EQ(any.only, "");
  EXPECT_FALSE(any.parallel);
  const ToolFields one = tools(R"(,"tool_choice":{"type":"tool","name":"go"})");
  EXPECT_EQ(one.choice, ToolChoice::kRequired);
  EXPECT_EQ(one.only, "go");
}

TEST(MessagesCall, ReadsTheOutputsForm) {
  const DialectCall formed = read(message_with(R"("output_config":{"effort":"low",
      "format":{"type":"json_schema","schema":{"type":"integer"}}})"));
  ASSERT_TRUE(formed.call.format);
  EXPECT_EQ(formed.call.format->field, "output_config.format.schema");
  EXPECT_EQ(std::get<JsonSchema>(formed.call.format->source.what).schema,
            json::parse(R"({"type":"integer"})"));
  EXPECT_EQ(chat_of(formed).template_kwargs.at("reasoning_effort"), "low");
}

TEST(MessagesCall, HasWritersOfItsDialect) {
  const DialectCall call = read(message_with(R"("model":"tiny")"));
  EXPECT_EQ(call.id_prefix, "msg_");
  const ByteTokenizer tokenizer;
  EXPECT_EQ(call.make_writer({}, tokenizer)->errors(), ErrorStyle::kAnthropic);
}

TEST(MessagesCall, CountsWithoutMaxTokens) {
  const auto count =
      read_messages_count(json::parse(R"({"messages":)" + std::string(kHello) + "}"));
  EXPECT_TRUE(std::holds_alternative<TextCall>(count));
  const Refusal refusal{R"({"messages":)" + std::string(kHello) + "}", "max_tokens", "required"};
  expect_refused(read_messages_call, {&refusal, 1});
}

TEST(MessagesCall, NamesThePathOfABadField) {
  const auto list = [](std::string_view item) {
    return body(R"("messages":[{"role":"user","content":"a"},)" + std::string(item) + "]");
  };
  const auto block = [&](std::string_view role, std::string_view text) {
    return list(R"({"role":")" + std::string(role) + R"(","content":[)" + std::string(text) + "]}");
  };
  const Refusal table[] = {
      {body(R"("messages":[])"), "messages", "at least one"},
      {body(R"("messages":"Hi")"), "messages", "an array"},
      {list("7"), "messages.1", "an object"},
      {list("{}"), "messages.1.role", "required"},
      {list(R"({"role":"tool","content":"x"})"), "messages.1.role", "\"tool\""},
      {list(R"({"role":["user"],"content":"x"})"), "messages.1.role", "an array"},
      {list(R"({"role":"user"})"), "messages.1.content", "required"},
      {list(R"({"role":"user","content":{}})"), "messages.1.content", "an object"},
      {block("user", ""), "messages.1.content", "at least one"},
      {R"({"max_tokens":8,"messages":[{"role":"assistant","content":""}]})", "messages",
       "nothing to answer"},
      {block("user", "null"), "messages.1.content.0", "null"},
      {block("user", "{}"), "messages.1.content.0.type", "required"},
      {block("user", R"({"type":5})"), "messages.1.content.0.type", "5"},
      {block("user", R"({"type":"text"})"), "messages.1.content.0.text", "required"},
      {block("user", R"({"type":"text","text":{}})"), "messages.1.content.0.text", "an object"},
      {block("user", R"({"type":"image","source":{}})"), "messages.1.content.0.type", "\"image\""},
      {block("user", R"({"type":"document"})"), "messages.1.content.0.type", "\"document\""},
      {block("user", R"({"type":"tool_use","id":"a","name":"b","input":{}})"),
       "messages.1.content.0.type", "\"tool_use\""},
      {block("assistant", R"({"type":"thinking","thinking":"hm"})"), "messages.1.content.0.type",
       "\"thinking\""},
      {block("assistant", R"({"type":"tool_use","id":"a","name":"b"})"),
       "messages.1.content.0.input", "required"},
      {block("assistant", R"({"type":"tool_use","id":"a","name":"b","input":{}})"), "messages",
       "tool_result"},
      {block("user", R"({"type":"tool_result","tool_use_id":"lost"})"),
       "messages.1.content.0.tool_use_id", "\"lost\""},
      {block("user", R"({"type":"tool_result"})"), "messages.1.content.0.tool_use_id", "required"},
      {block("user", R"({"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]})"),
       "messages.1.content.0.content.0.type", "\"image\""},
      {message_with(R"("system":5)"), "system", "5"},
      {message_with(R"("system":[{"type":"image"}])"), "system.0.type", "\"image\""},
      {R"({"max_tokens":0,"messages":[]})", "max_tokens", "at least 1"},
      {R"({"max_tokens":"many","messages":[]})", "max_tokens", "a string"},
      {message_with(R"("temperature":-1)"), "temperature", "-1"},
      {message_with(R"("stream":"yes")"), "stream", "true or false"},
      {message_with(R"("metadata":[])"), "metadata", "an object"},
      {message_with(R"("stop_sequences":"END")"), "stop_sequences", "an array"},
      {message_with(R"("stop_sequences":["a",""])"), "stop_sequences.1", "0 bytes"},
      {message_with(R"("stop_sequences":[7])"), "stop_sequences.0", "7"},
      {message_with(R"("thinking":{"type":"enabled","budget_tokens":1024})"), "thinking.type",
       "\"enabled\""},
      {message_with(R"("thinking":true)"), "thinking", "an object"},
      {message_with(R"("container":"c")"), "container", "not supported"},
      {message_with(R"("container":"")"), "container", "not supported"},
      {message_with(R"("context_management":{})"), "context_management", "not supported"},
      {message_with(R"("mcp_servers":false)"), "mcp_servers", "not supported"},
      {message_with(R"("mcp_servers":[{}])"), "mcp_servers", "not supported"},
      {message_with(R"("speed":"fast")"), "speed", "only one"},
      {message_with(R"("output_config":{"format":{"type":"json_schema"}})"),
       "output_config.format.schema", "required"},
      {message_with(R"("output_config":{"format":{"type":"xml"}})"), "output_config.format.type",
       "\"xml\""},
  };
  expect_refused(read_messages_call, table);
}

TEST(MessagesCall, NamesThePathOfABadTool) {
  const auto tool = [](std::string_view fields) {
    return message_with(R"("tools":[{)" + std::string(fields) + "}]");
  };
  const auto choice = [](std::string_view fields) {
    return message_with(std::string(kTools) + R"(,"tool_choice":)" + std::string(fields));
  };
  const Refusal table[] = {
      {message_with(R"("tools":{})"), "tools", "an array"},
      {message_with(R"("tools":["see"])"), "tools.0", "a string"},
      {tool(R"("type":"web_search_20250305","name":"web_search")"), "tools.0.type",
       "\"web_search_20250305\""},
      {tool(R"("name":"see")"), "tools.0.input_schema", "required"},
      {tool(R"("name":"see","input_schema":"{}")"), "tools.0.input_schema", "a string"},
      {tool(R"("input_schema":{})"), "tools.0.name", "required"},
      {tool(R"("name":"s e e","input_schema":{})"), "tools.0.name", "a-z"},
      {tool(R"("name":"see","input_schema":{}},{"name":"see","input_schema":{})"), "tools.1.name",
       "before it"},
      {tool(R"("name":"see","input_schema":{},"description":1)"), "tools.0.description", "1"},
      {tool(R"("name":"see","input_schema":{},"defer_loading":true)"), "tools.0.defer_loading",
       "not supported"},
      {choice(R"("any")"), "tool_choice", "a string"},
      {choice("{}"), "tool_choice.type", "required"},
      {choice(R"({"type":"must"})"), "tool_choice.type", "\"must\""},
      {choice(R"({"type":"tool"})"), "tool_choice.name", "required"},
      {choice(R"({"type":"tool","name":"fly"})"), "tool_choice.name", "\"fly\""},
      {message_with(R"("tool_choice":{"type":"any"})"), "tool_choice.type", "no tools"},
      {message_with(std::string(kTools) + R"(,"tool_choice":{"type":"any"},"output_config":{
          "format":{"type":"json_schema","schema":{}}})"),
       "tool_choice", "output_config.format"},
  };
  expect_refused(read_messages_call, table);
}

}  // namespace
}  // namespace protean
