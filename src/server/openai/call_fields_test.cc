// The values that each field of a call may have, and the errors for others.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "server/call/json_body.h"
#include "server/call/tool_fields.h"
#include "server/openai/embedding_call.h"
#include "server/openai/openai_call.h"
#include "server/openai/text_endpoints.h"

namespace protean {
namespace {

namespace json = boost::json;

// Returns the field and the message of a body's error, or an empty text if it is accepted.
template <class Parse>
std::string complaint(std::string_view body, Parse parse) {
  auto value = parse_json_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&value)) {
    return "json: " + error->message;
  }
  const auto parsed = parse(std::get<json::value>(std::move(value)));
  const ApiError* error = std::get_if<ApiError>(&parsed);
  return error == nullptr ? "" : error->param + ": " + error->message;
}

std::string in_completion(std::string_view fields) {
  return complaint(fmt::format(R"({{"prompt":"x",{}}})", fields), parse_completion_call);
}
std::string in_chat(std::string_view fields) {
  return complaint(fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}],{}}})", fields),
                   parse_chat_call);
}
GenerationCall chat(std::string_view fields) {
  auto parsed = parse_chat_call(
      json::parse(fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}],{}}})", fields)));
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<GenerationCall>(std::move(parsed));
}

struct Row {
  std::string fields;
  std::string param;
  std::string says;
};

void expect(const Row& row, const std::string& said) {
  EXPECT_EQ(said.substr(0, said.find(": ")), row.param) << row.fields << "\nsays: " << said;
  EXPECT_NE(said.find(row.says), std::string::npos) << row.fields << "\nsays: " << said;
}

TEST(CallFields, TokenRulesAreCheckedInBothKinds) {
  const Row table[] = {
      {R"("presence_penalty":2.1)", "presence_penalty", "at least -2 and at most 2"},
      {R"("frequency_penalty":"1")", "frequency_penalty", "not a string"},
      {R"("repetition_penalty":0)", "repetition_penalty", "above 0"},
      {R"("logit_bias":[])", "logit_bias", "an object"},
      {R"("logit_bias":{"a":1})", "logit_bias", "must be token ids, not \"a\""},
      {R"("logit_bias":{"-1":1})", "logit_bias", "must be token ids"},
      {R"("logit_bias":{"99999999999":1})", "logit_bias", "must be token ids"},
      {R"("logit_bias":{"5":100.5})", "logit_bias", "logit_bias[\"5\"] must be a number"},
      {R"("logit_bias":{"5":null})", "logit_bias", "not null"},
      {R"("allowed_token_ids":["a"])", "allowed_token_ids", "allowed_token_ids[0]"},
      {R"("bad_words":["a",""])", "bad_words", "not an empty string"},
      {R"("bad_words":{})", "bad_words", "array of strings"},
      {R"("min_tokens":-1)", "min_tokens", "at least 0"},
      {R"("min_tokens":5,"max_tokens":4)", "min_tokens", "more than max_tokens"},
      {R"("prompt_logprobs":21)", "prompt_logprobs", "from 0 to 20"},
      {R"("prompt_logprobs":-1)", "prompt_logprobs", "from 0 to 20"},
      {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs", "stream"},
      {R"("return_token_ids":1)", "return_token_ids", "true or false"},
      {R"("skip_special_tokens":"no")", "skip_special_tokens", "true or false"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens", "-1 or at least 1"},
      {R"("priority":1e12)", "priority", "an integer from"},
      {R"("timeout":0)", "timeout", "above 0"},
      {R"("timeout":"1s")", "timeout", "not a string"},
      {R"("user":5)", "user", "a string"},
      {R"("best_of":3,"n":2)", "best_of", "not supported"},
  };
  for (const Row& row : table) {
    expect(row, in_completion(row.fields));
    expect(row, in_chat(row.fields));
  }
  EXPECT_EQ(in_completion(R"("best_of":2,"n":2)"), "");
}

TEST(CallFields, LogprobsAreANumberInCompletionsAndABooleanInChats) {
  expect({"", "logprobs", "an integer from 0 to 20"}, in_completion(R"("logprobs":true)"));
  expect({"", "logprobs", "from 0 to 20"}, in_completion(R"("logprobs":21)"));
  expect({"", "logprobs", "true or false"}, in_chat(R"("logprobs":5)"));
  expect({"", "top_logprobs", "from 0 to 20"}, in_chat(R"("logprobs":true,"top_logprobs":21)"));
  expect({"", "top_logprobs", "only allowed when logprobs"}, in_chat(R"("top_logprobs":2)"));
  EXPECT_EQ(in_completion(R"("logprobs":0)"), "");
  EXPECT_EQ(in_chat(R"("logprobs":true,"top_logprobs":20)"), "");
}

TEST(CallFields, MaxTokensMayBeZeroOnlyIfThePromptIsReported) {
  EXPECT_EQ(in_completion(R"("max_tokens":0,"echo":true)"), "");
  EXPECT_EQ(in_completion(R"("max_tokens":0,"prompt_logprobs":0)"), "");
  expect({"", "max_tokens", "at least 1"}, in_completion(R"("max_tokens":0)"));
  expect({"", "max_tokens", "at least 1"}, in_chat(R"("max_tokens":0,"prompt_logprobs":0)"));
}

TEST(CallFields, FormsOfAnswersAreChecked) {
  const Row table[] = {
      {R"("response_format":"json")", "response_format", "an object"},
      {R"("response_format":{})", "response_format.type", "must be \"text\""},
      {R"("response_format":{"type":"xml"})", "response_format.type", "must be \"text\""},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema.schema",
       "is required"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})",
       "response_format.json_schema.schema", "is required"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"","schema":{}}})",
       "response_format.json_schema.name", "1 to 64"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":5}})",
       "response_format.json_schema.schema", "a JSON schema"},
      {R"("structured_outputs":{"regex":""})", "structured_outputs.regex",
       "a non-empty string, not an empty string"},
      {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice", "1 to 1024"},
      {R"("structured_outputs":{"choice":["a",1]})", "structured_outputs.choice", "not 1"},
      {R"("structured_outputs":{"grammar":""})", "structured_outputs.grammar", "non-empty"},
      {R"("structured_outputs":{"structural_tag":{}})", "structured_outputs.structural_tag",
       "not supported"},
      {R"("guided_grammar":7)", "guided_grammar", "a grammar in GBNF"},
      {R"("grammar":["root ::= x"])", "grammar", "a grammar in GBNF"},
      {R"("grammar":"root ::= x","guided_regex":"a")", "grammar", "exclude each other"},
      {R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs", "not several"},
      {R"("guided_json":"{oops")", "guided_json", "no JSON schema"},
      {R"("guided_json":[])", "guided_json", "a JSON schema"},
      {R"("guided_regex":7)", "guided_regex", "a non-empty string"},
      {R"("guided_regex":"a","json_schema":{})", "guided_regex", "exclude each other"},
      {R"("guided_regex":"a","min_tokens":2)", "min_tokens", "structured output"},
      {R"("guided_regex":"a","bad_words":["b"])", "bad_words", "structured output"},
      {R"("guided_regex":"a","allowed_token_ids":[1])", "allowed_token_ids", "structured output"},
  };
  for (const Row& row : table) {
    expect(row, in_completion(row.fields));
    expect(row, in_chat(row.fields));
  }
}

TEST(CallFields, FormsOfAllDialectsAreOneForm) {
  const std::string wanted = chat(R"("guided_json":{"type":"object"})").format->key;
  for (const char* same :
       {R"("guided_json":"{\"type\":\"object\"}")", R"("json_schema":{"type":"object"})",
        R"("structured_outputs":{"json":{"type":"object"}})",
        R"("response_format":{"type":"json_object","schema":{"type":"object"}})",
        R"("response_format":{"type":"json_schema","json_schema":{"name":"a","strict":true,
            "schema":{"type":"object"}}})"}) {
    EXPECT_EQ(chat(same).format->key, wanted) << same;
  }
  EXPECT_FALSE(chat(R"("response_format":{"type":"text"},"structured_outputs":{})").format);
  EXPECT_EQ(chat(R"("structured_outputs":{"regex":"a+"})").format->field,
            "structured_outputs.regex");
  const auto compact =
      chat(R"("structured_outputs":{"json":{"type":"object"},"disable_any_whitespace":true})");
  EXPECT_EQ(std::get<JsonSchema>(compact.format->source.what).whitespace.after_separator, " ");
  EXPECT_NE(compact.format->key, wanted);
}

TEST(CallFields, WhiteSpaceOfJsonIsAPattern) {
  for (const char* fields :
       {R"("guided_json":{"type":"object"},"guided_whitespace_pattern":"\n *")",
        R"("response_format":{"type":"json_object"},"guided_whitespace_pattern":"\n *")",
        R"("structured_outputs":{"json":{"type":"object"},"whitespace_pattern":"\n *"})",
        R"("structured_outputs":{"json_object":true,"whitespace_pattern":"\n *"})"}) {
    const auto call = chat(fields);
    const JsonWhitespace& whitespace = std::get<JsonSchema>(call.format->source.what).whitespace;
    EXPECT_EQ(whitespace.elsewhere, "\n *") << fields;
    EXPECT_EQ(whitespace.after_separator, "\n *") << fields;
    EXPECT_NE(call.format->key.find("\n *"), std::string::npos) << fields;
  }
  const auto key = [](const char* fields) { return chat(fields).format->key; };
  EXPECT_NE(key(R"("structured_outputs":{"json":{"type":"object"},"disable_any_whitespace":true})"),
            key(R"("structured_outputs":{"json":{"type":"object"},
             "whitespace_pattern":"of separators"})"));
  EXPECT_NE(key(R"("structured_outputs":{"json":{"type":"object"},"whitespace_pattern":"a"},
                   "guided_whitespace_pattern":"b")"),
            key(R"("guided_json":{"type":"object"},
                   "guided_whitespace_pattern":"a white space b")"));
  const Row table[] = {
      {R"("guided_whitespace_pattern":" ")", "guided_whitespace_pattern", "needs a JSON schema"},
      {R"("guided_regex":"a","guided_whitespace_pattern":" ")", "guided_whitespace_pattern",
       "needs a JSON schema"},
      {R"("guided_json":{},"guided_whitespace_pattern":7)", "guided_whitespace_pattern",
       "a string"},
      {R"("structured_outputs":{"choice":["a"],"whitespace_pattern":" "})",
       "structured_outputs.whitespace_pattern", "needs a JSON schema"},
      {R"("structured_outputs":{"json":{},"whitespace_pattern":" ","disable_any_whitespace":true})",
       "structured_outputs.whitespace_pattern", "exclude each other"},
  };
  for (const Row& row : table) {
    expect(row, in_completion(row.fields));
    expect(row, in_chat(row.fields));
  }
}

constexpr const char* kTool = R"({"type":"function","function":{"name":"f"}})";

TEST(CallFields, ToolsAreChecked) {
  const auto tools = [](std::string_view list) { return fmt::format("\"tools\":{}", list); };
  const Row table[] = {
      {tools("{}"), "tools", "an array"},
      {tools("[5]"), "tools", "tools[0] must be an object with a type"},
      {tools(R"([{"type":"web_search"}])"), "tools", "only functions"},
      {tools(R"([{"type":"function"}])"), "tools", "tools[0].function is required"},
      {tools(R"([{"type":"function","function":{}}])"), "tools[0].function.name", "is required"},
      {tools(R"([{"type":"function","function":{"name":"a b"}}])"), "tools[0].function.name",
       "characters"},
      {tools(R"([{"type":"function","function":{"name":"f","parameters":[]}}])"),
       "tools[0].function.parameters", "an object"},
      {tools(R"([{"type":"function","function":{"name":"f","strict":1}}])"),
       "tools[0].function.strict", "true or false"},
      {tools(fmt::format("[{0},{0}]", kTool)), "tools", "tools[1] has the name"},
      {R"("tool_choice":"required")", "tool_choice", "no tools"},
      {R"("tool_choice":"maybe")", "tool_choice", "must be \"none\""},
      {R"("tool_choice":{"type":"function"})", "tool_choice", "as an object"},
      {tools(fmt::format("[{}]", kTool)) +
           R"(,"tool_choice":{"type":"function","function":{"name":"g"}})",
       "tool_choice", "\"g\", which is not among"},
      {tools(fmt::format("[{}]", kTool)) + R"(,"tool_choice":"required","guided_regex":"a")",
       "guided_regex", "excludes tool_choice"},
      {tools(R"([{"type":"function","function":{"name":"f","strict":true}}])") +
           R"(,"min_tokens":2)",
       "min_tokens", "structured output"},
      {R"("parallel_tool_calls":"no")", "parallel_tool_calls", "true or false"},
  };
  for (const Row& row : table) {
    expect(row, in_chat(row.fields));
  }
  const auto call = chat(tools(fmt::format("[{}]", kTool)) +
                         R"(,"tool_choice":{"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(call.tools.choice, ToolChoice::kRequired);
  EXPECT_EQ(call.tools.only, "f");
  EXPECT_FALSE(
      chat(tools(fmt::format("[{}]", kTool)) + R"(,"tool_choice":"none")").tools.offered());
}

TEST(CallFields, ToolMessagesAnswerCalls) {
  const auto said = [](std::string_view messages) {
    return complaint(fmt::format(R"({{"messages":[{}]}})", messages), parse_chat_call);
  };
  const std::string call = R"({"role":"assistant","tool_calls":[{"id":"a","type":"function",
      "function":{"name":"f","arguments":"{}"}}]})";
  EXPECT_EQ(said(call + R"(,{"role":"tool","tool_call_id":"a","content":"1"})"), "");
  EXPECT_EQ(said(R"({"role":"developer","content":"be brief"},{"role":"user","content":"x"})"), "");
  const Row table[] = {
      {R"({"role":"tool","tool_call_id":"a","content":"1"})", "messages", "answers no tool call"},
      {R"({"role":"tool","content":"1"})", "messages", "tool_call_id is missing"},
      {call + R"(,{"role":"tool","tool_call_id":"b","content":"1"})", "messages",
       "messages[1].tool_call_id \"b\" answers no"},
      {R"({"role":"assistant","tool_calls":[{"id":"a","type":"function"}]})", "messages",
       "a function"},
      {R"({"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f",
          "arguments":""}}]})",
       "messages", "tool_calls[0].id"},
      {R"({"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}]})", "messages",
       "arguments must be"},
      {R"({"role":"assistant","function_call":{"name":"f"},"content":""})", "messages",
       "use tool_calls"},
  };
  for (const Row& row : table) {
    expect(row, said(row.fields));
  }
}

TEST(CallFields, ContinuingTheLastMessageExcludesAPromptForANewOne) {
  EXPECT_FALSE(
      std::get<ChatInput>(chat(R"("continue_final_message":true)").input).add_generation_prompt);
  expect({"", "continue_final_message", "exclude each other"},
         in_chat(R"("continue_final_message":true,"add_generation_prompt":true)"));
}

TEST(CallFields, EmbeddingsAreChecked) {
  const auto said = [](std::string_view body) { return complaint(body, read_embedding_call); };
  const Row table[] = {
      {"[]", "", "must be a JSON object"},
      {"{}", "input", "input is required"},
      {R"({"input":""})", "input", "empty text"},
      {R"({"input":["a",[]]})", "input", "empty text"},
      {R"({"input":["a",5]})", "input", "input[1]"},
      {R"({"input":"a","encoding_format":"hex"})", "encoding_format", "\"base64\""},
      {R"({"input":"a","dimensions":0})", "dimensions", "at least 1"},
  };
  for (const Row& row : table) {
    expect(row, said(row.fields));
  }
  EXPECT_EQ(said(R"({"input":["a",[1,2]],"encoding_format":"base64"})"), "");
}

TEST(CallFields, TokenizingTakesOneInput) {
  const auto said = [](std::string_view body) { return complaint(body, read_tokenize_call); };
  expect({"", "prompt", "exactly one of"}, said("{}"));
  expect({"", "prompt", "exactly one of"}, said(R"({"prompt":"a","content":"b"})"));
  expect({"", "prompt", "a string"}, said(R"({"prompt":5})"));
  expect({"", "messages", "at least one"}, said(R"({"messages":[]})"));
  expect({"", "tokens", "is required"}, complaint("{}", read_detokenize_call));
  expect({"", "tokens", "tokens[1]"}, complaint(R"({"tokens":[1,"a"]})", read_detokenize_call));
}

TEST(ToolGrammar, WritesCallsInTheModelsForm) {
  const ToolSyntax syntax{.begin = "<",
                          .before_name = "N:",
                          .before_arguments = " A:",
                          .after_arguments = ";",
                          .between = ",",
                          .end = ">",
                          .triggers = {"<N"}};
  ToolFields tools =
      chat(
          fmt::format(
              R"("tools":[{},{{"type":"function","function":{{"name":"g"}}}}],"tool_choice":"required")",
              kTool))
          .tools;
  const auto matches = [&](std::string_view text) {
    const auto format = tool_format_of(tools, syntax);
    const auto grammar = Grammar::compile(format->source);
    if (!grammar.ok()) {
      ADD_FAILURE() << grammar.error().message;
      return false;
    }
    return (*grammar)->matches(text);
  };
  EXPECT_TRUE(matches(R"(<N:f A:{};,N:g A:{"a": 1};>)"));
  EXPECT_FALSE(matches(R"(<N:g A:{ };>)")) << "arguments are compact";
  EXPECT_FALSE(matches("<>"));
  EXPECT_FALSE(matches(R"(<N:h A:{};>)"));
  tools.only = "g";
  EXPECT_TRUE(matches(R"(<N:g A:{};>)"));
  EXPECT_FALSE(matches(R"(<N:g A:{};,N:g A:{};>)")) << "a named function is called once";
  EXPECT_FALSE(matches(R"(<N:f A:{};>)"));
  tools.only = "";
  tools.parallel = false;
  EXPECT_TRUE(matches(R"(<N:f A:{};>)"));
  EXPECT_FALSE(matches(R"(<N:f A:{};,N:g A:{};>)"));
  tools.choice = ToolChoice::kAuto;
  EXPECT_FALSE(tool_format_of(tools, syntax)) << "no tool is strict";
}

// The parser must read each answer that the grammar allows, with arguments that satisfy the schema.
TEST(ToolGrammar, WritesArgumentsBetweenTags) {
  const ToolFields tools = chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":{
      "type":"object","required":["s","n"],"additionalProperties":false,"properties":{
      "s":{"type":"string","maxLength":12},"n":{"$ref":"#/$defs/count"},"e":{"enum":["x y","z"]},
      "u":{"type":["string","null"]}},
      "$defs":{"count":{"type":"integer","minimum":0,"maximum":20}}}}}],
      "tool_choice":"required","parallel_tool_calls":false)")
                               .tools;
  struct Row {
    ToolFormat format;
    std::string text;
    std::string arguments;  // empty: the grammar must not allow the answer
  };
  const std::string qwen = "<tool_call>\n<function=f>\n<parameter=s>\n{}\n</parameter>\n";
  const std::string qwen_end = "</function>\n</tool_call>";
  const auto number = [](std::string_view n) {
    return fmt::format("<parameter=n>\n{}\n</parameter>\n", n);
  };
  const std::string glm = "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a\"b</arg_value>\n";
  const std::string glm_number = "<arg_key>n</arg_key>\n<arg_value>20</arg_value>\n";
  const Row table[] = {
      {ToolFormat::kQwenCoder, fmt::format(fmt::runtime(qwen), "12") + number("7") + qwen_end,
       R"({"s": "12", "n": 7})"},
      {ToolFormat::kQwenCoder,
       fmt::format(fmt::runtime(qwen), "\na\n") + number("0") +
           "<parameter=e>\nx y\n</parameter>\n<parameter=u>\n\"null\"\n</parameter>\n" + qwen_end,
       R"({"s": "\na\n", "n": 0, "e": "x y", "u": "null"})"},
      {ToolFormat::kGlm, glm + glm_number + "</tool_call>", R"({"s": "a\"b", "n": 20})"},
      {ToolFormat::kQwenCoder, fmt::format(fmt::runtime(qwen), "12") + qwen_end, ""},
      {ToolFormat::kQwenCoder, fmt::format(fmt::runtime(qwen), "12") + number("21") + qwen_end, ""},
      {ToolFormat::kQwenCoder,
       fmt::format(fmt::runtime(qwen), "longer than twelve") + number("1") + qwen_end, ""},
      {ToolFormat::kQwenCoder,
       fmt::format(fmt::runtime(qwen), "</parameter>") + number("1") + qwen_end, ""},
      {ToolFormat::kGlm, glm + glm_number + glm_number + "</tool_call>", ""},
  };
  for (const Row& row : table) {
    const auto format = tool_format_of(tools, tool_syntax(row.format));
    const auto grammar = Grammar::compile(format->source);
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    EXPECT_EQ((*grammar)->matches(row.text), !row.arguments.empty()) << row.text;
    if (!row.arguments.empty()) {
      ToolCallParser parser(row.format, offered_tools(tools.tools));
      std::string arguments;
      for (const ToolPiece& piece : parser.push(row.text)) {
        const auto* more = std::get_if<ArgumentsPiece>(&piece);
        arguments += more != nullptr ? more->text : "";
      }
      EXPECT_EQ(arguments, row.arguments);
    }
  }
}

TEST(ToolGrammar, RefusesByNameSchemasThatCannotStandBetweenTags) {
  const auto complaint = [](const std::string& schema) {
    const ToolFields tools =
        chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + schema +
             R"(}}],"tool_choice":"required")")
            .tools;
    const auto format = tool_format_of(tools, tool_syntax(ToolFormat::kGlm));
    const auto grammar = Grammar::compile(format->source);
    return grammar.ok() ? "" : grammar.error().message;
  };
  EXPECT_EQ(complaint(R"({"type":"object","properties":{"a":{}}})"), "");
  EXPECT_NE(complaint(R"({"anyOf":[{"type":"object"},{"type":"object"}]})").find("'#/anyOf'"),
            std::string::npos);
  EXPECT_NE(complaint(R"({"type":"object","properties":{"a":{}},"minProperties":1})")
                .find("'#/minProperties'"),
            std::string::npos);
  EXPECT_NE(complaint(R"({"type":"object","properties":{"a<b":{"type":"string"}}})").find("'a<b'"),
            std::string::npos);
  EXPECT_NE(
      complaint(R"({"type":"object","properties":{"a":{"type":"string","wat":1}}})").find("wat"),
      std::string::npos);
}

}  // namespace
}  // namespace protean
