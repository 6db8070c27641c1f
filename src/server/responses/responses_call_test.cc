#include "server/responses/responses_call.h"

#include "server/test_scenes/byte_tokenizer_for_test.h"
#include "server/test_scenes/dialect_for_test.h"
#include "server/test_scenes/sse_events_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

std::string body_with(std::string_view fields) {
  return R"({"input":"Hello",)" + std::string(fields) + "}";
}

DialectCall read_response(const std::string& text) {
  return read_call(read_responses_call, text);
}
json::array input_messages(const std::string& text) {
  return chat_of(read_response(text)).messages;
}
json::object response(const std::string& text) {
  const ByteTokenizer tokenizer;
  const auto writer = read_response(text).make_writer({.id = "resp_1"}, tokenizer);
  return json::parse(writer->whole({{AnswerChoice{}}}, {})).as_object();
}

TEST(ResponsesCall, ReadsTheFieldsOfAllDialects) {
  const GenerationCall call =
      read_response(body_with(R"("model":"tiny","temperature":0.5,"top_p":0.75,
      "max_output_tokens":9,"stream":true,"store":true,"truncation":"disabled","background":false,
      "stream_options":{"include_obfuscation":false},"include":["reasoning.encrypted_content"],
      "metadata":{"k":"v"},"conversation":null,"user":"u","service_tier":"auto")"))
          .call;
  EXPECT_EQ(call.model, "tiny");
  EXPECT_EQ(call.sampling.temperature, 0.5F);
  EXPECT_EQ(call.sampling.top_p, 0.75F);
  EXPECT_EQ(call.max_tokens, 9);
  EXPECT_TRUE(call.stream.enabled);
  EXPECT_FALSE(call.report.logprobs);
  EXPECT_FALSE(call.tools.offered());
}

TEST(ResponsesCall, TurnsItemsIntoAChat) {
  expect_json(input_messages(R"({"input":"Hi"})"), R"([{"role":"user","content":"Hi"}])");
  expect_json(input_messages(R"({"instructions":"Be kind.","input":[
      {"role":"developer","content":"Be brief."},
      {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"message","role":"user","content":"c"},
      {"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[
        {"type":"output_text","text":"d","annotations":[],"logprobs":[]},
        {"type":"refusal","refusal":"e"}]},
      {"role":"user","content":"f"}]})"),
              R"([{"role":"system","content":"Be kind.\nBe brief."},
      {"role":"user","content":"a\nb"},{"role":"user","content":"c"},
      {"role":"assistant","content":"d\ne"},{"role":"user","content":"f"}])");
}

TEST(ResponsesCall, JoinsCallsToTheMessageBeforeThem) {
  expect_json(input_messages(R"({"input":[{"role":"user","content":"What is it like?"},
      {"role":"assistant","content":"Let me see."},
      {"type":"function_call","id":"fc_1","call_id":"c1","name":"see","arguments":"{\"at\":1}",
       "status":"completed"},
      {"type":"function_call","call_id":"c2","name":"feel","arguments":"{}"},
      {"type":"function_call_output","call_id":"c1","output":"red"},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"soft"}]},
      {"type":"function_call","call_id":"c3","name":"go","arguments":"{}"},
      {"type":"function_call_output","call_id":"c3","output":""}]})"),
              R"([{"role":"user","content":"What is it like?"},
      {"role":"assistant","content":"Let me see.","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"see","arguments":"{\"at\":1}"}},
        {"id":"c2","type":"function","function":{"name":"feel","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"red"},
      {"role":"tool","tool_call_id":"c2","content":"soft"},
      {"role":"assistant","content":null,"tool_calls":[
        {"id":"c3","type":"function","function":{"name":"go","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c3","content":""}])");
}

constexpr std::string_view kSeeTools = R"("tools":[{"type":"function","name":"see","strict":true,
    "description":"Looks.","parameters":{"type":"object","properties":{"at":{"type":"string"}}}},
    {"type":"function","name":"go","parameters":null,"strict":null}])";

TEST(ResponsesCall, ReadsTools) {
  const auto tools = [](std::string_view choice) {
    return read_response(body_with(std::string(kSeeTools) + std::string(choice))).call.tools;
  };
  const ToolFields offered = tools("");
  expect_json(offered.tools, R"([{"type":"function","function":{"name":"see",
      "description":"Looks.","parameters":{"type":"object","properties":{"at":{"type":"string"}}},
      "strict":true}},{"type":"function","function":{"name":"go"}}])");
  EXPECT_EQ(offered.choice, ToolChoice::kAuto);
  EXPECT_TRUE(offered.parallel);
  EXPECT_EQ(tools(R"(,"tool_choice":"auto")").choice, ToolChoice::kAuto);
  EXPECT_EQ(tools(R"(,"tool_choice":"none")").choice, ToolChoice::kNone);
  const ToolFields required = tools(R"(,"tool_choice":"required","parallel_tool_calls":false)");
  EXPECT_EQ(required.choice, ToolChoice::kRequired);
  EXPECT_FALSE(required.parallel);
  const ToolFields one = tools(R"(,"tool_choice":{"type":"function","name":"go"})");
  EXPECT_EQ(one.choice, ToolChoice::kRequired);
  EXPECT_EQ(one.only, "go");
}

TEST(ResponsesCall, ReadsTheTextsForm) {
  const auto format = [](std::string_view text) {
    return read_response(body_with(R"("text":)" + std::string(text))).call.format;
  };
  EXPECT_FALSE(format(R"({"format":{"type":"text"},"verbosity":"medium"})"));
  EXPECT_TRUE(format(R"({"format":{"type":"json_object"}})"));
  const auto schema = format(
      R"({"format":{"type":"json_schema","name":"n","strict":true,"schema":{"type":"integer"}}})");
  ASSERT_TRUE(schema);
  EXPECT_EQ(schema->field, "text.format.schema");
  EXPECT_EQ(std::get<JsonSchema>(schema->source.what).schema, json::parse(R"({"type":"integer"})"));
}

TEST(ResponsesCall, ReadsWhatIsReportedOfTokens) {
  EXPECT_TRUE(read_response(body_with(R"("include":["message.output_text.logprobs"])"))
                  .call.report.logprobs);
  const ReportFields top = read_response(body_with(R"("top_logprobs":3)")).call.report;
  EXPECT_TRUE(top.logprobs);
  EXPECT_EQ(top.top_logprobs, 3);
}

TEST(ResponsesCall, PassesEffortToTheTemplate) {
  const DialectCall call =
      read_response(body_with(R"("reasoning":{"effort":"high","summary":"auto"})"));
  EXPECT_EQ(chat_of(call).template_kwargs.at("reasoning_effort"), "high");
}

TEST(ResponsesCall, IsRepeatedByTheResponse) {
  json::object plain = response(R"({"input":"Hello"})");
  for (const char* key : {"output", "usage"}) {
    plain.erase(key);
  }
  expect_json(plain, R"({"id":"resp_1","object":"response","created_at":0,"model":"",
      "status":"completed","error":null,"incomplete_details":null,"background":false,
      "instructions":null,"max_output_tokens":null,"max_tool_calls":null,"metadata":{},
      "parallel_tool_calls":true,"previous_response_id":null,"prompt_cache_key":null,
      "reasoning":{"effort":null,"summary":null},"safety_identifier":null,
      "service_tier":"default","store":false,"temperature":null,
      "text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_logprobs":0,
      "top_p":null,"truncation":"disabled","user":null})");
  const json::object full = response(body_with(
      R"("instructions":"Be kind.","metadata":{"k":"v"},"temperature":0.5,"store":true,"tools":[{
      "type":"function","name":"go"}],"tool_choice":"required","text":{"verbosity":"medium"})"));
  EXPECT_EQ(full.at("instructions"), "Be kind.");
  expect_json(full.at("metadata"), R"({"k":"v"})");
  EXPECT_EQ(full.at("temperature"), 0.5);
  EXPECT_EQ(full.at("store"), false);
  EXPECT_EQ(full.at("tool_choice"), "required");
  expect_json(full.at("tools"), R"([{"type":"function","name":"go"}])");
  expect_json(full.at("text"), R"({"verbosity":"medium","format":{"type":"text"}})");
}

TEST(ResponsesCall, NamesThePathOfABadField) {
  const auto items = [](std::string_view item) {
    return R"({"input":[{"role":"user","content":"a"},)" + std::string(item) + "]}";
  };
  const Refusal table[] = {
      {"{}", "input", "required"},
      {R"({"input":[]})", "input", "at least one"},
      {R"({"input":7})", "input", "7"},
      {R"({"input":"a","instructions":["b"]})", "instructions", "an array"},
      {items("null"), "input[1]", "null"},
      {items(R"({"type":1})"), "input[1].type", "1"},
      {items("{}"), "input[1].role", "required"},
      {items(R"({"role":"tool","content":"x"})"), "input[1].role", "\"tool\""},
      {items(R"({"role":"user"})"), "input[1].content", "required"},
      {items(R"({"role":"user","content":3})"), "input[1].content", "3"},
      {items(R"({"role":"user","content":["x"]})"), "input[1].content[0]", "a string"},
      {items(R"({"role":"user","content":[{}]})"), "input[1].content[0].type", "required"},
      {items(R"({"role":"user","content":[{"type":"input_text"}]})"), "input[1].content[0].text",
       "required"},
      {items(R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})"),
       "input[1].content[0].type", "\"input_image\""},
      {items(R"({"type":"item_reference","id":"msg_1"})"), "input[1].type", "keeps none"},
      {items(R"({"type":"reasoning","summary":[]})"), "input[1].type", "\"reasoning\""},
      {items(R"({"type":"web_search_call"})"), "input[1].type", "\"web_search_call\""},
      {items(R"({"type":"function_call","name":"a","arguments":"{}"})"), "input[1].call_id",
       "required"},
      {items(R"({"type":"function_call","call_id":"c","name":"a","arguments":{}})"),
       "input[1].arguments", "an object"},
      {items(R"({"type":"function_call_output","call_id":"lost","output":"x"})"),
       "input[1].call_id", "\"lost\""},
      {items(R"({"type":"function_call_output","call_id":"lost"})"), "input[1].output", "required"},
      {body_with(R"("max_output_tokens":0)"), "max_output_tokens", "at least 1"},
      {body_with(R"("temperature":"hot")"), "temperature", "a string"},
      {body_with(R"("stream":1)"), "stream", "true or false"},
      {body_with(R"("store":"yes")"), "store", "true or false"},
      {body_with(R"("metadata":{"a":1})"), "metadata.a", "1"},
      {body_with(R"("previous_response_id":"resp_1")"), "previous_response_id",
       "whole conversation"},
      {body_with(R"("conversation":"conv_1")"), "conversation", "not supported"},
      {body_with(R"("background":true)"), "background", "not supported"},
      {body_with(R"("prompt":"")"), "prompt", "not supported"},
      {body_with(R"("moderation":false)"), "moderation", "not supported"},
      {body_with(R"("prompt":{"id":"p"})"), "prompt", "not supported"},
      {body_with(R"("truncation":"auto")"), "truncation", "\"disabled\""},
      {body_with(R"("include":["everything"])"), "include[0]", "\"everything\""},
      {body_with(R"("include":[[]])"), "include[0]", "an array"},
      {body_with(R"("top_logprobs":21)"), "top_logprobs", "21"},
      {body_with(R"("stream_options":{"include_obfuscation":true})"),
       "stream_options.include_obfuscation", "not supported"},
      {body_with(R"("reasoning":"high")"), "reasoning", "a string"},
      {body_with(R"("text":{"verbosity":"low"})"), "text.verbosity", "medium"},
      {body_with(R"("text":{"format":"json"})"), "text.format", "a string"},
      {body_with(R"("text":{"format":{"type":"xml"}})"), "text.format.type", "json_schema"},
      {body_with(R"("text":{"format":{"type":"json_schema","schema":{}}})"), "text.format.name",
       "required"},
      {body_with(R"("text":{"format":{"type":"json_schema","name":"n"}})"), "text.format.schema",
       "required"},
  };
  expect_refused(read_responses_call, table);
}

TEST(ResponsesCall, NamesThePathOfABadTool) {
  const auto choice = [](std::string_view text) {
    return body_with(std::string(kSeeTools) + R"(,"tool_choice":)" + std::string(text));
  };
  const Refusal table[] = {
      {body_with(R"("tools":"see")"), "tools", "a string"},
      {body_with(R"("tools":[null])"), "tools[0]", "null"},
      {body_with(R"("tools":[{"name":"see"}])"), "tools[0].type", "required"},
      {body_with(R"("tools":[{"type":"web_search"}])"), "tools[0].type", "\"web_search\""},
      {body_with(R"("tools":[{"type":"function"}])"), "tools[0].name", "required"},
      {body_with(R"("tools":[{"type":"function","name":"a b"}])"), "tools[0].name", "a-z"},
      {body_with(R"("tools":[{"type":"function","name":"a","parameters":[]}])"),
       "tools[0].parameters", "an array"},
      {choice(R"("always")"), "tool_choice", "required"},
      {choice(R"({"type":"allowed_tools","mode":"auto","tools":[]})"), "tool_choice.type",
       "\"allowed_tools\""},
      {choice(R"({"type":"function"})"), "tool_choice.name", "required"},
      {choice(R"({"type":"function","name":"fly"})"), "tool_choice.name", "\"fly\""},
      {body_with(R"("tool_choice":"required")"), "tool_choice", "no tools"},
      {body_with(std::string(kSeeTools) +
                 R"(,"tool_choice":"required","text":{"format":{"type":"json_object"}})"),
       "text.format", "excludes"},
  };
  expect_refused(read_responses_call, table);
}

}  // namespace
}  // namespace protean
