#include "jinja/template.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "jinja/filters.h"
#include "jinja/methods.h"

namespace protean::jinja {
namespace {

namespace json = boost::json;

// Returns the text with «» around the ranges that the template wrote.
std::string shown(const MarkedText& marked) {
  std::string out;
  std::size_t at = 0;
  for (const TextRange& range : marked.from_template) {
    EXPECT_TRUE(range.begin < range.end && range.end <= marked.text.size());
    EXPECT_TRUE(at == 0 || at < range.begin) << "ranges touch";
    out += marked.text.substr(at, range.begin - at);
    out += "«" + marked.text.substr(range.begin, range.end - range.begin) + "»";
    at = range.end;
  }
  return out + marked.text.substr(at);
}

Names names() {
  return {.values = json::parse(R"({"x":"<7>","list":["7","8"],"sp":" 7 ","own":"<s>","n":3,
                                    "messages":[{"role":"user","content":"user"}]})")
                        .as_object(),
          .is_own =
              [](auto path, std::string_view) {
                return path.back() == "own" || (path.size() == 2 && path[1] == "role");
              },
          .now = {}};
}

std::string marked(std::string_view source) {
  const Result<Template> parsed = Template::parse(source);
  if (!parsed.ok()) return parsed.error().message;
  const Result<MarkedText> rendered = parsed->render(names());
  return rendered.ok() ? shown(*rendered) : rendered.error().message;
}

TEST(TemplateMarks, literal_text_and_own_values_are_marked) {
  EXPECT_EQ(marked("a{{ x }}b"), "«a»<7>«b»");
  EXPECT_EQ(marked("{{ own }}{{ 'b' }}c{{ n }}{{ x }}"), "«<s>bc»3<7>");
  EXPECT_EQ(marked("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"),
            "«<|user|>»user");
  EXPECT_EQ(marked("{{ {'k': 'v'}['k'] }}{{ ['a'][0] }}{{ x or 'b' }}{{ none or 'b' }}"),
            "«va»<7>«b»");
}

TEST(TemplateMarks, pieces_keep_their_marks) {
  EXPECT_EQ(marked("{{ 'a' + x + 'b' }}"), "«a»<7>«b»");
  EXPECT_EQ(marked("{{ 'a' ~ x ~ n ~ 'b' }}"), "«a»<7>3«b»");
  EXPECT_EQ(marked("{{ ('  a ' ~ sp ~ ' ') | trim }}|{{ (' a' ~ sp).strip() }}"), "«a » 7«|a» 7");
  EXPECT_EQ(marked("{{ ('abc' ~ x ~ 'def')[1:-1] }}{{ ('ab' ~ x)[2] }}"), "«bc»<7>«de»<");
  EXPECT_EQ(marked("{{ ('a|' ~ x ~ 'b|c').split('|') | join('-') }}"), "«a-»<7>«b-c»");
  EXPECT_EQ(marked("{{ '-'.join(['a', x, 'b']) }}{{ list | join(' ') }}"), "«a-»<7>«-b»7« »8");
  EXPECT_EQ(marked("{{ ('a' ~ x ~ 'a').replace('a', 'bb') }}"), "«bb»<7>«bb»");
  EXPECT_EQ(marked("{{ 'a_b' | replace('_', x) }}{{ x | replace('7', 'c') }}"), "«a»<7>«b»<«c»>");
  EXPECT_EQ(marked("{{ 'a %s %d' % (x, 5) }}{{ '{{}}{}b'.format(x) }}"), "«a »<7>« »5«{}»<7>«b»");
  EXPECT_EQ(marked("{{ ('a\nb' ~ x ~ '\n') | indent(2) }}."), "«a»\n  «b»<7>\n«.»");
  EXPECT_EQ(marked("{% for c in 'a' ~ x %}{{ c }}{% endfor %}"), "«a»<7>");
  EXPECT_EQ(marked("{{ ('ab' ~ x).removeprefix('a').rstrip('>') }}"), "«b»<7");
  EXPECT_EQ(marked("{{ ('a' ~ x).center(8, '.') }}"), "..«a»<7>..");
}

TEST(TemplateMarks, blocks_and_macros_keep_marks) {
  EXPECT_EQ(marked("{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m('a') }}{{ m(x) }}"),
            "«<a><»<7>«>»");
  EXPECT_EQ(marked("{% set t %}a{{ x }}b{% endset %}{{ t }}{{ t[:1] }}"), "«a»<7>«ba»");
  EXPECT_EQ(
      marked("{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}a{{ x }}{% endcall %}"),
      "«[a»<7>«]»");
  EXPECT_EQ(marked("{% filter trim %} a{{ x }} {% endfilter %}"), "«a»<7>");
  EXPECT_EQ(marked("{% set ns = namespace(t='a') %}{% set ns.t = ns.t ~ x %}{{ ns.t }}"), "«a»<7>");
  EXPECT_EQ(marked("{% for i in ['a'] recursive %}{{ i }}{{ loop([x]) if i == 'a' }}{% endfor %}"),
            "«a»<7>");
}

TEST(TemplateMarks, transformed_text_is_marked_only_if_all_of_it_was) {
  EXPECT_EQ(marked("{{ 'a' | upper }}{{ 'b'.upper() }}{{ 'ab'[::-1] }}{{ '-' * 2 }}"), "«ABba--»");
  EXPECT_EQ(marked("{{ ('a' ~ x) | upper }}"), "A<7>");
  EXPECT_EQ(marked("{{ ('a' ~ x)[::-1] }}"), ">7<a");
  EXPECT_EQ(marked("{{ {'a': x} | tojson }}{{ ['a', x] }}"), "{\"a\": \"<7>\"}['a', '<7>']");
}

std::vector<std::string> calls_of(std::span<const NamedBuiltin> table, std::string_view before) {
  std::vector<std::string> calls;
  for (const NamedBuiltin& builtin : table) {
    for (const char* arguments : {"()", "('b', 'c')"}) {
      calls.push_back(std::string(before) + std::string(builtin.name) + arguments);
    }
  }
  return calls;
}

std::vector<std::string> together(std::initializer_list<std::vector<std::string>> lists) {
  std::vector<std::string> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Renders text that is partly the template's and counts renderings; no given byte may be marked.
void expect_no_given_byte_marked(const std::string& first, const std::string& second,
                                 int& rendered) {
  static const Names kGiven{.values = {{"x", "7b7 a7"}}, .is_own = {}, .now = {}};
  const auto parsed = Template::parse("{{ (('a b' ~ x ~ 'ab ' ~ x)" + first + ")" + second + " }}");
  if (!parsed.ok()) return;
  const Result<MarkedText> text = parsed->render(kGiven);
  if (!text.ok()) return;
  ++rendered;
  for (const TextRange& range : text->from_template) {
    const std::string own = text->text.substr(range.begin, range.end - range.begin);
    EXPECT_EQ(own.find('7'), std::string::npos) << first << second << ": " << shown(*text);
  }
}

TEST(TemplateMarks, no_builtin_marks_a_given_byte) {
  int rendered = 0;
  const auto of_text = together({calls_of(text_filters(), " | "), calls_of(text_methods(), ".")});
  for (const std::string& call :
       together({of_text, calls_of(sequence_filters(), " | "), calls_of(web_filters(), " | "),
                 calls_of(selection_filters(), " | "), calls_of(number_filters(), " | ")})) {
    expect_no_given_byte_marked(call, "", rendered);
    expect_no_given_byte_marked(call, " | join('-')", rendered);
  }
  for (const std::string& first : of_text) {
    for (const std::string& second : of_text) {
      expect_no_given_byte_marked(first, second, rendered);
    }
  }
  EXPECT_GT(rendered, 1000);
}

TEST(MarkedText, is_cut_with_its_ranges) {
  MarkedText text;
  text.append_from_template("ab");
  text.text += "7";
  text.append_from_template("cd");
  text.append_from_template("e");
  EXPECT_EQ(shown(text), "«ab»7«cde»");
  text.truncate(4);
  EXPECT_EQ(shown(text), "«ab»7«c»");
  text.truncate(3);
  EXPECT_EQ(shown(text), "«ab»7");
  text.truncate(0);
  EXPECT_EQ(shown(text), "");
}

}  // namespace
}  // namespace protean::jinja
