#include <fmt/format.h>

#include <random>

#include "base/repetitions_for_test.h"
#include "chat/tool_calls_for_test.h"

namespace protean {
namespace {

std::string hermes(std::string_view text) {
  return parse(ToolFormat::kHermes, text);
}
std::string llama(std::string_view text) {
  return parse(ToolFormat::kLlama3, text);
}
std::string mistral(std::string_view text) {
  return parse(ToolFormat::kMistral, text);
}
TEST(ToolCalls, hermes_calls) {
  EXPECT_EQ(hermes("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"),
            "«f {\"a\": 1}»");
  EXPECT_EQ(hermes("\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
                   "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"c\":[1,{}]}}\n"
                   "</tool_call>\n"),
            "«f {}»«get_weather {\"c\":[1,{}]}»");
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"), "«f {}»");
}

TEST(ToolCalls, hermes_content_around_calls_stays) {
  EXPECT_EQ(hermes("Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nDone. "),
            "Let me see.«f {}»\nDone. ");
  EXPECT_EQ(hermes("One \n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"),
            "One \n«f {}»");
  EXPECT_EQ(hermes("  No call < here <tool>, <tool_cal.\n"),
            "  No call < here <tool>, <tool_cal.\n");
  EXPECT_EQ(hermes(" \n"), " \n");
  EXPECT_EQ(hermes("a\n<tool_c"), "a\n<tool_c");
}

TEST(ToolCalls, keys_come_in_any_order) {
  EXPECT_EQ(hermes("<tool_call>{\"arguments\": {\"a\": \"}\"}, \"name\": \"f\"}</tool_call>"),
            "«f {\"a\": \"}\"}»");
  EXPECT_EQ(llama("{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": null}}"),
            "«f {\"a\": null}»");
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\",\"arguments\":{},\"x\":[1,-2.5e3,\"}\"],\"y\":7}"
                   "</tool_call>!"),
            "«f {}»!");
}

TEST(ToolCalls, arguments_keep_their_bytes) {
  const std::string arguments =
      R"({ "s" : "é日😀 \"quoted\" {[ \\ \u00e9 </tool_call>" , "n":[ 1.50, -0, 1e+9 ],"o":{"":{}} })";
  const std::string call = "{\"name\": \"f\", \"arguments\": " + arguments + "}";
  const std::string expected = "«f " + arguments + "»";
  EXPECT_EQ(hermes("<tool_call>\n" + call + "\n</tool_call>"), expected);
  EXPECT_EQ(llama(call), expected);
  EXPECT_EQ(mistral("[TOOL_CALLS][" + call + "]"), expected);
  EXPECT_EQ(mistral("[TOOL_CALLS]f[ARGS]" + arguments), expected);
}

TEST(ToolCalls, arguments_sent_as_text_are_unwrapped) {
  EXPECT_EQ(
      hermes(R"(<tool_call>{"name":"f","arguments":"{\"a\": \"x\\n\\\"\u00e9\ud83d\ude00\"}"})"
             "</tool_call>"),
      "«f {\"a\": \"x\\n\\\"é😀\"}»");
  EXPECT_EQ(hermes(R"(<tool_call>{"arguments":" {} ","name":"f"}</tool_call>)"), "«f {}»");
  for (const char* text : {R"(<tool_call>{"name":"f","arguments":"no object"}</tool_call>)",
                           R"(<tool_call>{"name":"f","arguments":""}</tool_call>)",
                           R"(<tool_call>{"arguments":"{} {}","name":"f"}</tool_call>)",
                           R"(<tool_call>{"arguments":"{","name":"f"}</tool_call>)"}) {
    EXPECT_EQ(hermes(text), text);
  }
}

TEST(ToolCalls, raw_control_characters_in_arguments_are_escaped) {
  EXPECT_EQ(llama("{\"name\":\"f\",\"parameters\":{\"a\":\"x\ny\tz\x01\"}}"),
            "«f {\"a\":\"x\\ny\\tz\\u0001\"}»");
  EXPECT_EQ(llama(R"({"name":"f","parameters":"{\"a\":\"x\ny\"}"})"), "«f {\"a\":\"x\\ny\"}»");
}

TEST(ToolCalls, what_only_looks_like_a_call_is_content) {
  for (const char* text : {
           "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
           "a\n<tool_call>{\"name\": \"f\"}</tool_call>",
           "<tool_call>{\"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
           "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"thought\": 1, \"arguments\": {}}</tool_call>",
           "<tool_call>{\"arguments\": {}, \"arguments\": {}, \"name\": \"f\"}</tool_call>",
           "<tool_call>{'name': 'f'}</tool_call>",
           "<tool_call>{\"name\": \"f",
           "<tool_call>{\"arguments\": {\"a\": 1}, ",
           "<tool_call>[]</tool_call>",
           "<tool_call>\n</tool_call>",
           "<tool_call>",
           "<tool_call>{\"name\": \"\\ud800\", \"arguments\": {}}</tool_call>",
       }) {
    EXPECT_EQ(hermes(text), text);
  }
  for (const char* text : {"Hello", "{\"city\": \"Paris\"}", "{}",
                           "  {\"name\": \"g\", \"parameters\": {}}", "<|python_tag|>print(1)",
                           "<|python", "Hi {\"name\": \"f\", \"parameters\": {}}", "\n; {"}) {
    EXPECT_EQ(llama(text), text);
  }
  for (const char* text :
       {"[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS]f[ARGS]x",
        "[TOOL_CALLS]f[ARG]{}", "[1] [TOOL", "[TOOL_CALLS]f\n{}", "[TOOL_CALLS]f[CALL_ID]1[X]{}"}) {
    EXPECT_EQ(mistral(text), text);
  }
}

TEST(ToolCalls, a_call_is_found_behind_a_false_one) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(hermes("<tool_call>" + call), "<tool_call>«f {}»");
  EXPECT_EQ(hermes("<<tool_call<tool_call>\n{\"name\": \"f\", " + call),
            "<<tool_call<tool_call>\n{\"name\": \"f\", «f {}»");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}}\n" + call), "«f {}»«f {}»");
  EXPECT_EQ(mistral("[TOOL_CALLS][TOOL_CALLS]f{}"), "[TOOL_CALLS]«f {}»");
  EXPECT_EQ(mistral("[TOOL_CALLS]g [TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}]"),
            "[TOOL_CALLS]g «f {}»");
}

TEST(ToolCalls, a_call_that_goes_wrong_ends_there) {
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oops}}</tool_call>"),
            "«f {\"a\": »oops}}</tool_call>");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1"), "«f {\"a\": 1»");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}}} </tool_call>"),
            "«f {}»} </tool_call>");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool"), "«f {}»\n</tool");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}}\n"), "«f {}»");
}

TEST(ToolCalls, llama_calls) {
  EXPECT_EQ(llama("<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"1\"}}"),
            "«f {\"a\": \"1\"}»");
  EXPECT_EQ(llama("{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\", \"arguments\": {}}\n"
                  "<|python_tag|> {\"name\": \"get_weather\", \"parameters\": {}} ;\n"),
            "«f {}»«f {}»«get_weather {}»");
  EXPECT_EQ(llama("{\"name\": \"f\", \"parameters\": {}}; and more"), "«f {}»; and more");
}

TEST(ToolCalls, mistral_calls) {
  EXPECT_EQ(mistral("[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"x\"}, "
                    "{\"id\": \"abc123def\", \"name\": \"get_weather\", \"arguments\": {}}]"),
            "«f {\"a\": 1}»«get_weather#abc123def {}»");
  EXPECT_EQ(mistral("Ok.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{}"),
            "Ok.«f {\"a\": 1}»«get_weather#abc {}»");
  EXPECT_EQ(mistral("[TOOL_CALLS] f {\"a\": 1} tail"), "«f {\"a\": 1}» tail");
  EXPECT_EQ(mistral("[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, {\"x\":1}] t"),
            "«f {}», {\"x\":1}] t");
}

TEST(ToolCalls, nothing_is_a_call_without_tools_or_format) {
  const std::string text = "\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n";
  EXPECT_EQ(parse(ToolFormat::kNone, text), text);
  ToolCallParser parser(ToolFormat::kHermes, {});
  Outcome outcome;
  outcome.add(parser.push(text));
  outcome.add(parser.finish());
  EXPECT_EQ(outcome.text(), text);
}

// An answer that max_tokens or a stop string cut off after or inside a call has no trailing
// content.
TEST(ToolCalls, marks_cut_off_behind_a_call_are_no_content) {
  const auto cut = [](ToolFormat format, std::string_view text) {
    ToolCallParser parser(format, offered());
    Outcome outcome;
    outcome.add(parser.push(text));
    outcome.add(parser.finish(true));
    return outcome.text() + (parser.in_call() ? " cut" : "");
  };
  const std::string hermes = R"(<tool_call>{"name": "f", "arguments": {}})";
  EXPECT_EQ(cut(ToolFormat::kHermes, hermes + "\n</too"), "«f {}»");
  EXPECT_EQ(cut(ToolFormat::kHermes, hermes + "</tool_call>\n<tool_"), "«f {}»");
  EXPECT_EQ(cut(ToolFormat::kHermes, hermes + "</tool_call>\n<tool_call>\n{\"na"), "«f {}»");
  EXPECT_EQ(cut(ToolFormat::kHermes, hermes + "</tool_call> 1 <tool"), "«f {}» 1 <tool");
  EXPECT_EQ(cut(ToolFormat::kHermes, R"(<tool_call>{"name": "f", "arguments": {"a)"),
            "«f {\"a» cut");
  EXPECT_EQ(cut(ToolFormat::kHermes, "Look: <tool"), "Look: <tool") << "there was no call";
  const std::string llama = R"({"name": "f", "parameters": {}})";
  EXPECT_EQ(cut(ToolFormat::kLlama3, llama + "; {\"name\": \""), "«f {}»");
  EXPECT_EQ(cut(ToolFormat::kMistral, "[TOOL_CALLS][" + hermes.substr(11) + ", {\"na"), "«f {}»");
  EXPECT_EQ(cut(ToolFormat::kQwenCoder, "<tool_call><function=f></function>\n</t"), "«f {}»");
  EXPECT_EQ(cut(ToolFormat::kGlm, "<tool_call>f\n<arg_key>place<"), "«f » cut");
}

TEST(ToolCalls, glm4_calls_begin_the_answer) {
  const auto glm4 = [](std::string_view text) { return parse(ToolFormat::kGlm4, text); };
  EXPECT_EQ(glm4("\nget_weather\n{\"city\": \"Oslo\"}"), "«get_weather {\"city\": \"Oslo\"}»");
  EXPECT_EQ(glm4("f\n{}\nget_weather \n {\"a\": 1}\n"), "«f {}»«get_weather {\"a\": 1}»");
  EXPECT_EQ(glm4("Let me see.\nf\n{}"), "Let me see.\nf\n{}");
  for (const char* text : {"f", "get_weather", "f\n", "f\nhello", "g\n{}", "find {}", "f {}"}) {
    EXPECT_EQ(glm4(text), text);
  }
  EXPECT_EQ(glm4("f\n{}\nDone."), "«f {}»\nDone.");
}

TEST(ToolCalls, granite_and_command_write_arrays) {
  const auto granite = [](std::string_view text) { return parse(ToolFormat::kGranite, text); };
  EXPECT_EQ(granite("<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"),
            "«f {\"a\": 1}»");
  EXPECT_EQ(granite("Hm.\n<|tool_call|> [{\"arguments\": {}, \"name\": \"f\"},\n{\"name\": "
                    "\"get_weather\", \"arguments\": {}}]!"),
            "Hm.«f {}»«get_weather {}»!");
  EXPECT_EQ(granite("<|tool_call|>{}"), "<|tool_call|>{}");
  EXPECT_EQ(granite("<|tool_call|>{\"name\": \"f\", \"arguments\": {}}<|/tool_call|><|tool_call|>"
                    "{\"name\": \"f\", \"arguments\": {\"a\": 1}}<|/tool_call|> Done."),
            "«f {}»«f {\"a\": 1}» Done.");
  const auto command = [](std::string_view text) { return parse(ToolFormat::kCommand, text); };
  EXPECT_EQ(command("I will look.<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": "
                    "\"f\", \"parameters\": {\"a\": 1}},\n    {\"tool_call_id\": \"1\", "
                    "\"tool_name\": \"get_weather\", \"parameters\": {}}\n]"),
            "I will look.«f {\"a\": 1}»«get_weather {}»");
}

TEST(ToolCalls, arguments_stream_as_they_come) {
  ToolCallParser parser(ToolFormat::kHermes, offered());
  EXPECT_TRUE(parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": ").empty());
  const auto opened = parser.push("{\"a");
  ASSERT_EQ(opened.size(), 2u);
  EXPECT_EQ(std::get<CallBegin>(opened[0]).name, "f");
  EXPECT_EQ(std::get<ArgumentsPiece>(opened[1]).text, "{\"a");
  const auto more = parser.push("\": 1");
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(std::get<ArgumentsPiece>(more[0]).text, "\": 1");
}

// A text that follows the syntax must be parsed into the same calls.
TEST(ToolCalls, syntax_reads_back) {
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral,
                                  ToolFormat::kGlm4, ToolFormat::kGranite, ToolFormat::kCommand}) {
    const ToolSyntax syntax = tool_syntax(format);
    std::string text = syntax.begin;
    std::string expected;
    for (int i = 0; i < 3; ++i) {
      const std::string name = offered()[static_cast<std::size_t>(i % 2)].name;
      const std::string arguments = "{\"i\":[" + std::to_string(i) + ",\"}]\"]}";
      if (i > 0) text += syntax.between;
      text += syntax.before_name + name + syntax.before_arguments + arguments;
      text += syntax.after_arguments;
      expected += "«" + name + " " + arguments + "»";
    }
    text += syntax.end;
    EXPECT_EQ(parse(format, text), expected);
    ASSERT_EQ(syntax.triggers.empty(), format == ToolFormat::kGlm4);
    for (const std::string& trigger : syntax.triggers) {
      EXPECT_TRUE((syntax.begin + syntax.before_name).starts_with(trigger)) << trigger;
    }
  }
  EXPECT_TRUE(tool_syntax(ToolFormat::kNone).triggers.empty());
}

TEST(ToolCalls, names_of_formats) {
  for (const ToolFormat format : {ToolFormat::kNone, ToolFormat::kHermes, ToolFormat::kLlama3,
                                  ToolFormat::kMistral, ToolFormat::kQwenCoder, ToolFormat::kGlm,
                                  ToolFormat::kGlm4, ToolFormat::kGranite, ToolFormat::kCommand}) {
    EXPECT_EQ(*parse_tool_format(to_string(format)), format);
  }
  const auto unknown = parse_tool_format("pythonic");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("'pythonic'"), std::string::npos);
}

TEST(ToolCalls, formats_of_templates) {
  EXPECT_EQ(detect_tool_format("{{ '<tool_call>\\n{\"name\": ' }}"), ToolFormat::kHermes);
  EXPECT_EQ(detect_tool_format("{{ '<tool_call>\\n<function=' }}"), ToolFormat::kQwenCoder);
  EXPECT_EQ(detect_tool_format("{{ '<tool_call>' ~ name }}<arg_key>"), ToolFormat::kGlm);
  EXPECT_EQ(detect_tool_format("{{ '[TOOL_CALLS] [' }}"), ToolFormat::kMistral);
  EXPECT_EQ(detect_tool_format("<|start_header_id|>{{ '\"parameters\": ' }}"), ToolFormat::kLlama3);
  EXPECT_EQ(detect_tool_format("<|start_header_id|>{{ message.content }}"), ToolFormat::kNone);
  EXPECT_EQ(detect_tool_format("{{ '<|observation|>' }}"), ToolFormat::kGlm4);
  EXPECT_EQ(detect_tool_format("respond with <|tool_call|> followed by"), ToolFormat::kGranite);
  EXPECT_EQ(detect_tool_format("'<|tool|>' + tools + '<|/tool|>'"), ToolFormat::kGranite);
  EXPECT_EQ(detect_tool_format("<|START_ACTION|>[{% for tc in calls %}"), ToolFormat::kCommand);
}

// Random texts of meaningful pieces. The result must not depend on how a text is cut, and each
// numbered mark, which occurs only where nothing is dropped, must come out exactly once.
class RandomTexts : public testing::TestWithParam<ToolFormat> {
 protected:
  static bool tagged() {
    return GetParam() == ToolFormat::kQwenCoder || GetParam() == ToolFormat::kGlm;
  }
};

const std::vector<std::string>& tag_pieces() {
  static const std::vector<std::string> kTags = {"<tool_call>",
                                                 "</tool_call>",
                                                 "<tool_call><function=f>",
                                                 "<tool_call>f\n",
                                                 "<function=f>",
                                                 "</function>",
                                                 "</function>\n</tool_call>",
                                                 "<parameter=s>MARK",
                                                 "<parameter=MARK>",
                                                 "<parameter=n>1</parameter>",
                                                 "</parameter>",
                                                 "\n</parameter>",
                                                 "<arg_key>s</arg_key>",
                                                 "<arg_key>MARK</arg_key>",
                                                 "<arg_value>",
                                                 "<arg_value>MARK",
                                                 "</arg_value>",
                                                 "MARK",
                                                 "f",
                                                 "<",
                                                 "</",
                                                 "\n",
                                                 "{\"MARK\": [1]}",
                                                 "true",
                                                 " "};
  return kTags;
}

std::string random_text(std::mt19937& random, bool marks, bool tagged) {
  static const std::vector<std::string> kPieces = {
      "<tool_call>",
      "</tool_call>",
      "[TOOL_CALLS]",
      "[ARGS]",
      "[TOOL_CALLS]f[ARGS]{\"MARK\":",
      "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"MARK\":",
      "[CALL_ID]",
      "<|python_tag|>",
      "<|tool_call|>[",
      "<|START_ACTION|>[",
      "f\n{\"a\":\"MARK\"}",
      "\"tool_name\": \"f\"",
      "{\"name\": \"f\", \"arguments\": ",
      "{\"name\": \"f\", \"parameters\": {",
      "}",
      "}",
      "}",
      "{",
      "[",
      "]",
      ",",
      ";",
      "\n",
      " ",
      "\"name\": \"f\"",
      "\"name\":\"g\"",
      "\"arguments\": ",
      "\"arguments\":{\"a\":\"MARK\"}",
      "\"arguments\":\"{\\\"a\\\":\\\"MARK\\\"}\"",
      "MARK",
      "f",
      ":",
      "{\"name\":\"f\",\"arguments\":{\"a\":\"MARK\",\"b\":[{\"MARK\":1.5e-3}]}}",

      "1",
      "true",
      "\"id\": \"i\"",
      "<tool_",
      "[TOOL"};
  static const std::vector<std::string> kLoose = {"\"", "\"type\":", "\\", "\\u00", "\\ud83d",
                                                  "é",  "\x01",      "-",  "x"};
  std::string text;
  int mark = 0;
  for (auto n = random() % 24; n > 0; --n) {
    const bool loose = !marks && random() % 6 == 0;
    const std::vector<std::string>& pieces = loose ? kLoose : tagged ? tag_pieces() : kPieces;
    std::string piece = pieces[random() % pieces.size()];
    for (std::size_t at; (at = piece.find("MARK")) != std::string::npos;) {
      piece.replace(at, 4, fmt::format("({})", mark++));
    }
    text += piece;
  }
  return text;
}

TEST_P(RandomTexts, any_cut_gives_the_same) {
  std::mt19937 random(7);
  int with_calls = 0;
  for (int round = 0; round < repetitions(15'000); ++round) {
    const std::string text = random_text(random, false, tagged());
    const std::string whole = parse_in_pieces(GetParam(), text, {text.size() + 1});
    std::vector<std::size_t> lengths;
    for (int i = 0; i < 5; ++i) lengths.push_back(1 + random() % 9);
    ASSERT_EQ(parse_in_pieces(GetParam(), text, lengths), whole) << text;
    ASSERT_EQ(parse_in_pieces(GetParam(), text, {1}), whole) << text;
    with_calls += whole.find("«") != std::string::npos;
  }
  EXPECT_GT(with_calls, repetitions(100));
}

TEST_P(RandomTexts, nothing_is_lost) {
  std::mt19937 random(8);
  for (int round = 0; round < repetitions(15'000); ++round) {
    const std::string text = random_text(random, true, tagged());
    const std::string out = parse_in_pieces(GetParam(), text, {4});
    for (int mark = 0;; ++mark) {
      const std::string word = fmt::format("({})", mark);
      if (text.find(word) == std::string::npos) break;
      const std::size_t at = out.find(word);
      ASSERT_NE(at, std::string::npos) << text << "\n" << out;
      ASSERT_EQ(out.find(word, at + 1), std::string::npos) << text << "\n" << out;
    }
    if (out.find("«") == std::string::npos) {
      ASSERT_EQ(out, text);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, RandomTexts,
                         testing::Values(ToolFormat::kHermes, ToolFormat::kLlama3,
                                         ToolFormat::kMistral, ToolFormat::kQwenCoder,
                                         ToolFormat::kGlm, ToolFormat::kGlm4, ToolFormat::kGranite,
                                         ToolFormat::kCommand),
                         [](const auto& info) { return std::string(to_string(info.param)); });

// Text with a false call at every possible byte must take linear time.
TEST(ToolCalls, long_false_calls_are_held_only_so_far) {
  std::string text = "<tool_call>{\"arguments\": {\"a\": \"";
  while (text.size() < (3u << 20)) text += "<tool_call>{\\\"arguments\\\":";
  ToolCallParser parser(ToolFormat::kHermes, offered());
  std::size_t came = 0;
  std::size_t held_most = 0;
  for (std::size_t at = 0; at < text.size(); at += 1000) {
    for (const ToolPiece& piece : parser.push(std::string_view(text).substr(at, 1000))) {
      came += std::get<ContentPiece>(piece).text.size();
    }
    held_most = std::max(held_most, std::min(at + 1000, text.size()) - came);
  }
  EXPECT_LE(held_most, (1u << 20) + 1000);
  for (const ToolPiece& piece : parser.finish()) came += std::get<ContentPiece>(piece).text.size();
  EXPECT_EQ(came, text.size());
}

}  // namespace
}  // namespace protean
