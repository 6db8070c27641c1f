#include "chat/chat_template.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/test_data.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view kAsk = R"([{"role":"user","content":"Hi"}])";

std::string render(std::string_view source, std::string_view messages = kAsk,
                   const ChatContext& context = {}) {
  const Result<ChatTemplate> parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return "parse: " + parsed.error().message;
  const auto text = parsed->render(json::parse(messages).as_array(), context);
  return text.ok() ? text->text : "render: " + text.error().message;
}

ErrorCode code_of(std::string_view source) {
  const Result<ChatTemplate> parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return parsed.error().code;
  const auto text = parsed->render({}, {});
  EXPECT_FALSE(text.ok()) << source;
  return text.ok() ? ErrorCode::kInternal : text.error().code;
}

TEST(ChatTemplate, chatml_is_built_in) {
  const auto messages = json::parse(R"([{"role":"system","content":"S"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null}])")
                            .as_array();
  EXPECT_EQ(ChatTemplate::chatml().render(messages, {})->text,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, text_reaches_a_template_of_parts) {
  const boost::json::array messages =
      boost::json::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":null},
                            {"role":"user","content":[{"type":"text","text":"b"}]},{"role":"x"}])")
          .as_array();
  const auto show = [&](std::string_view source, bool as_is = false) {
    const auto text =
        ChatTemplate::parse(source)->render(messages, ChatContext{.content_as_is = as_is});
    return text.ok() ? text->text : text.error().message;
  };
  constexpr std::string_view kOnlyParts =
      "{% for m in messages if m.content %}{% for p in m.content %}"
      "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}";
  EXPECT_EQ(show(kOnlyParts), "ab");
  EXPECT_EQ(show(kOnlyParts, true), "b");
  EXPECT_EQ(show("{{ messages[0].content[0]['text'] + '!' }}"), "a!");
  EXPECT_EQ(show("{{ messages[0].content }}"), "a");
  EXPECT_EQ(show("{% for m in messages %}{% if m.content is string %}{{ m.content }}"
                 "{% elif m.content %}{{ m.content[0].text }}{% endif %}{% endfor %}"),
            "ab");
  EXPECT_EQ(show("no messages"), "no messages");
}

constexpr std::string_view kCallRound =
    R"([{"role":"user","content":"Hi"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"abcdef123","type":"function",
         "function":{"name":"f","arguments":"{\"place\": \"Oslo 7\"}"}}]},
        {"role":"tool","tool_call_id":"abcdef123","content":"r"}])";

// As in published templates: Qwen3 concatenates content with text. DeepSeek-V3 recognises a call by
// null content and concatenates its arguments with text.
TEST(ChatTemplate, calls_reach_a_template_in_the_form_it_reads) {
  EXPECT_EQ(render("{% for m in messages %}{{ '<' + m.content }}{% for c in m.tool_calls or [] %}"
                   "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
                   kCallRound),
            "<Hi<{\"place\": \"Oslo 7\"}<r");
  EXPECT_EQ(render("{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
                   "{{ '[' + m.tool_calls[0].function.arguments + ']' }}{% endif %}{% endfor %}",
                   kCallRound),
            "[{\"place\": \"Oslo 7\"}]");
  EXPECT_EQ(
      render("{% for m in messages %}{{ m.content[0].text if m.role != 'assistant' else "
             "m.content | length ~ m.tool_calls[0].function.arguments | tojson }}{% endfor %}",
             kCallRound),
      "Hi0{\"place\": \"Oslo 7\"}r");
}

// A round as OpenAI's clients send it: null content, and arguments as text.
TEST(ChatTemplate, every_family_with_tools_renders_a_round_of_calls) {
  const ChatContext context{.now = std::tm{.tm_mday = 9, .tm_year = 126}};
  for (const char* family : {"channels", "command_r", "deepseek", "granite", "llama3.1", "macros",
                             "mistral", "qwen3", "xml_tools"}) {
    std::ifstream file("tests/jinja/templates/" + std::string(family) + ".jinja");
    if (!file) GTEST_SKIP() << "run from the source folder";
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    const std::string text = render(source, kCallRound, context);
    EXPECT_FALSE(text.starts_with("render: ")) << family << "\n" << text;
    EXPECT_NE(text.find("Oslo 7"), std::string::npos) << family << "\n" << text;
    EXPECT_EQ(text.find("'place'"), std::string::npos) << family << "\n" << text;
    EXPECT_EQ(text.find("\\\"place"), std::string::npos) << family << "\n" << text;
  }
}

// Some API dialects give a call's arguments as an object.
TEST(ChatTemplate, arguments_become_text_for_a_template_that_joins_text) {
  EXPECT_EQ(render("{% for m in messages if m.tool_calls %}"
                   "{{ '[' + m.tool_calls[0].function.arguments + ']' }}{% endfor %}",
                   R"([{"role":"assistant","content":"","tool_calls":[
                       {"function":{"name":"f","arguments":{"a":[1,"x"]}}}]}])"),
            "[{\"a\":[1,\"x\"]}]");
}

TEST(ChatTemplate, errors_say_the_line) {
  EXPECT_EQ(render("a\n\n{% nope %}"), "parse: chat template line 3: unknown tag 'nope'");
  EXPECT_EQ(render("a\n{{ x.y }}"), "render: chat template line 2: 'x' is undefined");
  EXPECT_EQ(render("{{ raise_exception('no ' ~ messages[0].role) }}"),
            "render: chat template line 1: no user");
  EXPECT_EQ(render("\n{{ 1 | nofilter }}"),
            "parse: chat template line 2: no filter named 'nofilter'");
  EXPECT_EQ(render("{% macro m() %}\n{{ none + 1 }}{% endmacro %}\n\n{{ m() }}"),
            "render: chat template line 2: unsupported operand type(s) for +: 'NoneType' and "
            "'int'");
}

TEST(ChatTemplate, what_is_not_supported_is_refused_by_name) {
  for (const char* source :
       {"{% include 'x' %}", "{% block b %}{% endblock %}",
        "{% autoescape true %}x{% endautoescape %}", "{{ [].append(1) }}", "{{ {}.update({}) }}",
        "{{ 'x'.translate({}) }}", "{{ '{:>5}'.format(1) }}", "{{ ''.__class__ }}",
        "{{ namespace() }}", "{{ [1]|map('string') }}", "{{ 2 ** 70 }}", "{{ '%Q' % 1 }}"}) {
    EXPECT_EQ(code_of(source), ErrorCode::kUnsupported) << source;
  }
  EXPECT_EQ(render("{% include 'x' %}"),
            "parse: chat template line 1: the tag 'include' is not supported");
}

TEST(ChatTemplate, endless_templates_reach_a_limit) {
  for (
      const char* source :
      {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
       "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
       "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(99) %}"
       "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
       "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
       "endfor %}",
       "{{ 'x' * 9999999999 }}", "{{ [1] * 9999999999 }}", "{{ 'x'.center(9999999999) }}",
       "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
       "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
       "{{ ns.l }}",
       "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
       "{{ ns.l|tojson }}",
       "{% set ns = namespace() %}{% set ns.me = [ns] %}{% for i in range(99999) %}"
       "{% set ns.me = [ns.me, ns.me] %}{% endfor %}{{ ns.me == ns.me[0] }}{{ 'a' * 99999999 }}",
       "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
       "{% set a = 'a' * 999999 %}{% for i in range(99999) %}{{ a.find('b') }}{% endfor %}",
       "{% set a = 'a' * 999999 %}{{ a.strip('a' ~ a) }}{{ a.rfind('b' ~ a[1:]) }}"
       "{% for i in range(99) %}{{ a.rfind('b' ~ a[500000:]) }}{% endfor %}"}) {
    EXPECT_EQ(code_of(source), ErrorCode::kExhausted) << source;
  }
}

TEST(ChatTemplate, deep_sources_are_refused) {
  const auto repeat = [](std::string_view part, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += part;
    return out;
  };
  for (const std::string& source :
       {"{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}",
        "{{ " + repeat("not ", 5000) + "1 }}", "{{ " + repeat("-", 5000) + "1 }}",
        "{{ " + repeat("[", 5000) + "}}", "{{ 1" + repeat("+1", 5000) + " }}",
        "{{ x" + repeat(".x", 5000) + " }}", "{{ x" + repeat("|e", 5000) + " }}",
        "{{ x" + repeat("()", 5000) + " }}", "{{ x" + repeat(" if x else x", 5000) + " }}",
        "{{ x" + repeat(" if x", 5000) + " }}", repeat("{% if x %}", 5000),
        repeat("{% set x %}", 5000), "{{ {" + repeat("1:{", 5000) + " }}",
        "{{ x[" + repeat("x[", 5000) + " }}", "{% set " + repeat("(", 5000) + " %}",
        std::string(2 << 20, 'x')}) {
    const Result<ChatTemplate> parsed = ChatTemplate::parse(source);
    EXPECT_FALSE(parsed.ok()) << source.substr(0, 40);
  }
}

TEST(ChatTemplate, long_messages_are_rendered) {
  std::string turn(200'000, 'x');
  json::array messages;
  for (int i = 0; i < 40; ++i) messages.push_back({{"role", "user"}, {"content", turn}});
  const auto text =
      ChatTemplate::parse(
          "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim }}{% endfor %}")
          ->render(messages, {});
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(text->text.size(), 40 * (turn.size() + 6));
}

TEST(ChatTemplate, arguments_of_tool_calls_are_objects) {
  constexpr std::string_view kCalls =
      R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":[1,\"ä\"]}"}},
          {"function":{"arguments":"not json"}}, {"function":{"arguments":"[1]"}}, 5]}])";
  EXPECT_EQ(
      render(
          "{% for c in messages[0].tool_calls %}{{ c.function.arguments|tojson if c is mapping }};"
          "{% endfor %}",
          kCalls),
      "{\"a\": [1, \"ä\"]};\"not json\";\"[1]\";;");
}

TEST(ChatTemplate, time_comes_from_the_caller) {
  EXPECT_EQ(render("{{ strftime_now is defined }}"), "False");
  ChatContext context;
  context.now = std::tm{.tm_mday = 9, .tm_mon = 6, .tm_year = 124, .tm_wday = 2};
  EXPECT_EQ(render("{{ strftime_now('%A, %d %b %Y') }}", kAsk, context), "Tuesday, 09 Jul 2024");
}

TEST(ChatTemplate, kwargs_set_names_except_messages_and_tools) {
  ChatContext context{.bos_token = "<s>", .eos_token = "</s>"};
  context.template_kwargs =
      json::parse(R"({"x":1,"bos_token":"B","messages":[],"tools":5})").as_object();
  EXPECT_EQ(render("{{ x }}{{ bos_token }}{{ eos_token }}{{ messages|length }}{{ tools }}"
                   "{{ add_generation_prompt }}",
                   kAsk, context),
            "1B</s>1NoneTrue");
}

class ChatFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) /
                 ("chat_files_" +
                  std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write(const char* name, std::string_view text) { std::ofstream(directory_ / name) << text; }
  std::filesystem::path directory_;
};

TEST_F(ChatFilesTest, missing_files_are_not_an_error) {
  const auto files = read_chat_files(directory_);
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->template_source + files->bos_token + files->eos_token, "");
}

TEST_F(ChatFilesTest, tokens_are_text_or_objects) {
  write("tokenizer_config.json",
        R"({"bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>","chat_template":"T"})");
  write("special_tokens_map.json", R"({"bos_token":"other"})");
  const auto files = read_chat_files(directory_);
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->template_source, "T");
  EXPECT_EQ(files->bos_token, "<s>");
  EXPECT_EQ(files->eos_token, "</s>");
}

TEST_F(ChatFilesTest, special_tokens_map_fills_in) {
  write("tokenizer_config.json", R"({"bos_token":null})");
  write("special_tokens_map.json", R"({"bos_token":"<s>","eos_token":{"content":"<e>"}})");
  const auto files = read_chat_files(directory_);
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->bos_token, "");
  EXPECT_EQ(files->eos_token, "<e>");
}

TEST_F(ChatFilesTest, default_of_a_list_is_used) {
  write("tokenizer_config.json",
        R"({"chat_template":[{"name":"rag","template":"R"},{"name":"default","template":"D"}]})");
  EXPECT_EQ(read_chat_files(directory_)->template_source, "D");
  write("tokenizer_config.json", R"({"chat_template":[{"name":"rag","template":"R"}]})");
  const auto files = read_chat_files(directory_);
  ASSERT_FALSE(files.ok());
  EXPECT_NE(files.error().message.find("it has: rag"), std::string::npos);
}

TEST_F(ChatFilesTest, template_files_take_precedence) {
  write("tokenizer_config.json", R"({"chat_template":"config"})");
  write("chat_template.json", R"({"chat_template":"json"})");
  EXPECT_EQ(read_chat_files(directory_)->template_source, "json");
  write("chat_template.jinja", "jinja\n");
  EXPECT_EQ(read_chat_files(directory_)->template_source, "jinja\n");
}

TEST_F(ChatFilesTest, broken_files_are_errors) {
  write("tokenizer_config.json", "{");
  EXPECT_EQ(read_chat_files(directory_).error().code, ErrorCode::kCorrupt);
  write("tokenizer_config.json", "[]");
  EXPECT_EQ(read_chat_files(directory_).error().code, ErrorCode::kCorrupt);
  write("tokenizer_config.json", R"({"chat_template":5})");
  EXPECT_EQ(read_chat_files(directory_).error().code, ErrorCode::kCorrupt);
}

TEST(ChatFiles, real_models) {
  const auto qwen = test_data("tokenizers/qwen2.5");
  PROTEAN_REQUIRE_DATA(qwen);
  const auto files = read_chat_files(qwen);
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(files->eos_token, "<|im_end|>");
  const auto parsed = ChatTemplate::parse(files->template_source);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(
      parsed->render(json::parse(kAsk).as_array(), {})->text,
      "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
      "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const auto llama = read_chat_files(test_data("tokenizers/llama2"));
  ASSERT_TRUE(llama.ok());
  EXPECT_EQ(llama->bos_token + llama->eos_token, "<s></s>");
}

}  // namespace
}  // namespace protean
