// Tests calls whose arguments are between tags.

#include <fmt/format.h>

#include "chat/tool_calls_for_test.h"

namespace protean {
namespace {

std::string qwen(std::string_view text) {
  return parse(ToolFormat::kQwenCoder, text);
}
std::string glm(std::string_view text) {
  return parse(ToolFormat::kGlm, text);
}

TEST(ToolCalls, qwen_coder_calls) {
  EXPECT_EQ(qwen("<tool_call>\n<function=f>\n<parameter=s>\nParis\n</parameter>\n<parameter=i>\n3\n"
                 "</parameter>\n</function>\n</tool_call>"),
            "«f {\"s\": \"Paris\", \"i\": 3}»");
  EXPECT_EQ(qwen("Let me see.\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>"
                 "<function=get_weather></function></tool_call>\n"),
            "Let me see.«f {}»«get_weather {}»");
  EXPECT_EQ(qwen("<tool_call><function=f><parameter=s>a\n\n</parameter></function></tool_call>!"),
            "«f {\"s\": \"a\\n\"}»!")
      << "one newline is the tag's";
  EXPECT_EQ(qwen("<tool_call><function=f><parameter=s>\n\"x\" < </paramete>\\\t\n</parameter>"
                 "</function></tool_call>"),
            R"(«f {"s": "\"x\" < </paramete>\\\t"}»)");
}

TEST(ToolCalls, glm_calls) {
  EXPECT_EQ(glm("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>Paris\n</arg_value>\n"
                "<arg_key>i</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"),
            "«f {\"s\": \"Paris\\n\", \"i\": 3}»");
  EXPECT_EQ(glm("Hm.\n<tool_call>f\n</tool_call>\n<tool_call>get_weather</tool_call> t"),
            "Hm.«f {}»«get_weather {}» t");
  EXPECT_EQ(glm("<tool_call>f<arg_key>s</arg_key><arg_value></arg_value></tool_call>"),
            "«f {\"s\": \"\"}»");
}

// Text between tags becomes a value that the tool's schema allows, else a string.
TEST(ToolCalls, arguments_between_tags_have_the_types_of_their_schema) {
  const auto argument = [](std::string_view key, std::string_view value) {
    const std::string text = fmt::format(
        "<tool_call>f\n<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call>", key, value);
    const std::string call = glm(text);
    const std::string lead = fmt::format("«f {{\"{}\": ", key);
    EXPECT_TRUE(call.starts_with(lead) && call.ends_with("}»")) << call;
    return call.substr(lead.size(), call.size() - lead.size() - std::string("}»").size());
  };
  EXPECT_EQ(argument("s", "12"), "\"12\"");
  EXPECT_EQ(argument("s", "null"), "\"null\"");
  EXPECT_EQ(argument("n", " 1.5e3\n"), "1.5e3");
  EXPECT_EQ(argument("n", "x"), "\"x\"") << "the model's mistake is shown";
  EXPECT_EQ(argument("i", "3.0"), "3.0");
  EXPECT_EQ(argument("i", "3.5"), "\"3.5\"");
  EXPECT_EQ(argument("b", "true"), "true");
  EXPECT_EQ(argument("b", "False"), "false");
  EXPECT_EQ(argument("b", "1"), "\"1\"");
  EXPECT_EQ(argument("l", "[\"a\", [1]]"), "[\"a\", [1]]");
  EXPECT_EQ(argument("l", "[1"), "\"[1\"");
  EXPECT_EQ(argument("o", "{\"a\": {}}"), "{\"a\": {}}");
  EXPECT_EQ(argument("o", "[]"), "\"[]\"");
  EXPECT_EQ(argument("e", "12"), "\"12\"") << "both of the enum are text";
  EXPECT_EQ(argument("u", "None"), "null");
  EXPECT_EQ(argument("u", "none"), "\"none\"");
  EXPECT_EQ(argument("w", "7"), "7");
  EXPECT_EQ(argument("w", "seven"), "\"seven\"");
  EXPECT_EQ(argument("unknown", "7"), "7");
  EXPECT_EQ(argument("unknown", "\xff"), "\"\xff\"") << "no JSON, and no crash";
  const std::string deep(300, '[');
  EXPECT_EQ(argument("l", deep), '"' + deep + '"');
}

TEST(ToolCalls, what_only_looks_like_a_tagged_call_is_content) {
  for (const char* text : {
           "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
           "<tool_call><function=f></tool_call>",
           "<tool_call><function=f>x</function></tool_call>",
           "<tool_call><func=f></func></tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
           "<tool_call><function=f",
           "<tool_call><function=f><parameter",
           "<function=f></function>",
       }) {
    EXPECT_EQ(qwen(text), text);
  }
  for (const char* text : {"<tool_call>g\n</tool_call>", "<tool_call>f\n<arg_value>1</arg_value>",
                           "<tool_call>f", "<tool_call>f\n<", "<tool_call>f\nmore</tool_call>"}) {
    EXPECT_EQ(glm(text), text);
  }
}

TEST(ToolCalls, a_tagged_call_that_goes_wrong_ends_there) {
  EXPECT_EQ(qwen("<tool_call><function=f><parameter=s>a</parameter><parameter=s>b</parameter>"),
            "«f {\"s\": \"a\"»<parameter=s>b</parameter>")
      << "a key comes once";
  EXPECT_EQ(qwen("<tool_call><function=f><parameter=s>\nab\n</par"), "«f {\"s\": \"ab\\n</par»");
  EXPECT_EQ(qwen("<tool_call><function=f><parameter=l>\n[1, 2"), "«f {\"l\": [1, 2»");
  EXPECT_EQ(glm("<tool_call>f\n<arg_key>i</arg_key>\n<arg_value>1</arg_value>\n<tool_call>f\n"
                "</tool_call>"),
            "«f {\"i\": 1»\n«f {}»");
}

TEST(ToolCalls, text_between_tags_streams_as_it_comes) {
  ToolCallParser parser(ToolFormat::kQwenCoder, offered());
  EXPECT_TRUE(parser.push("<tool_call>\n<function=f>\n<para").empty());
  const auto opened = parser.push("meter=s>\nPar");
  ASSERT_EQ(opened.size(), 2u);
  EXPECT_EQ(std::get<CallBegin>(opened[0]).name, "f");
  EXPECT_EQ(std::get<ArgumentsPiece>(opened[1]).text, "{\"s\": \"Par");
  EXPECT_EQ(std::get<ArgumentsPiece>(parser.push("is").at(0)).text, "is");
  EXPECT_TRUE(parser.push("\n</parameter").empty());
  EXPECT_EQ(std::get<ArgumentsPiece>(parser.push(">\n<parameter=i>\n1").at(0)).text, "\"");
  EXPECT_EQ(std::get<ArgumentsPiece>(parser.push("2\n</parameter>").at(0)).text, ", \"i\": 12");
}

}  // namespace
}  // namespace protean
