#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

namespace protean {
namespace {

std::shared_ptr<const Grammar> compiled(GrammarSource source) {
  auto grammar = Grammar::compile(source);
  EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
  return grammar.ok() ? *grammar : nullptr;
}

GrammarSource regex(std::string pattern) {
  return {RegexPattern{std::move(pattern)}};
}
GrammarSource literal(std::string text) {
  return {LiteralText{std::move(text)}};
}

ErrorCode regex_error(std::string pattern) {
  const auto grammar = Grammar::compile(regex(std::move(pattern)));
  return grammar.ok() ? ErrorCode::kInternal : grammar.error().code;
}

TEST(Grammar, PlainSources) {
  EXPECT_TRUE(compiled(literal("a\xC3\xA9"))->matches("a\xC3\xA9"));
  EXPECT_FALSE(compiled(literal("ab"))->matches("a"));
  const auto any = compiled({AnyText{}});
  EXPECT_TRUE(any->matches(""));
  EXPECT_TRUE(any->matches("x \xF0\x9F\x98\x80\n"));
  EXPECT_FALSE(any->matches("\xC3"));
  EXPECT_FALSE(any->matches("\xED\xA0\x80"));  // a surrogate
  EXPECT_FALSE(any->matches("\xC0\x80"));      // longer than needed
  EXPECT_FALSE(any->matches("\xF4\x90\x80\x80"));
}

TEST(Grammar, AnyTextHoldsNoneOfItsEnds) {
  const auto text = compiled({AnyText{{"<tool_call>", "stop"}}});
  EXPECT_TRUE(text->matches("a < b <tool call> sto p"));
  EXPECT_TRUE(text->matches("<tool_call"));
  EXPECT_FALSE(text->matches("x<tool_call>"));
  EXPECT_FALSE(text->matches("<<tool_call>y"));
  EXPECT_FALSE(text->matches("ststop"));
  const auto then = compiled({Concatenation{{{AnyText{{"END"}}}, literal("END")}}});
  EXPECT_TRUE(then->matches("ENEND"));
  EXPECT_FALSE(then->matches("ENDEND"));
}

TEST(Grammar, ChoicesSequencesAndRepeats) {
  const auto choice = compiled({Choice{{literal("yes"), literal("no"), literal("not")}}});
  EXPECT_TRUE(choice->matches("not"));
  EXPECT_FALSE(choice->matches("n"));
  const GrammarSource digit = regex("[0-9]");
  for (const auto& [least, most] : {std::pair{0, 3}, {2, 4}, {3, -1}, {1, 1}, {0, 0}}) {
    const auto repeat = compiled({Repeat{{digit}, least, most}});
    std::string text;
    for (int n = 0; n < 8; ++n, text += '7') {
      EXPECT_EQ(repeat->matches(text), n >= least && (most < 0 || n <= most))
          << least << " " << most << " " << n;
    }
  }
  // Repeats in repeats count apart.
  const auto nested =
      compiled({Repeat{{{Concatenation{{{Repeat{{digit}, 2, 3}}, literal(";")}}}}, 2, 2}});
  EXPECT_TRUE(nested->matches("12;345;"));
  EXPECT_FALSE(nested->matches("12;3;"));
  EXPECT_FALSE(nested->matches("12;34;56;"));
  EXPECT_TRUE(compiled({Repeat{{regex("a?")}, 3, 5}})->matches("aaaa"));
  EXPECT_TRUE(compiled({Repeat{{regex("a?")}, 3, 5}})->matches("a"));
  EXPECT_FALSE(compiled({Repeat{{regex("a?")}, 3, 5}})->matches("aaaaaa"));
}

TEST(Grammar, Regexes) {
  struct Case {
    const char* pattern;
    std::vector<std::string> in;
    std::vector<std::string> out;
  };
  const std::vector<Case> cases{
      {"(?:a|bc)*d{2,3}?", {"dd", "abcddd"}, {"d", "dddd", "bdd"}},
      {"[^a-c\\d]+", {"xyz\n", "\xC3\xA9"}, {"", "a", "x1"}},
      {".", {"x", "\r", "\xE2\x82\xAC"}, {"\n", "", "xy"}},
      {"^\\w+\\s\\S$", {"ab_9 !"}, {"ab!"}},
      {"\\x41\\u0042\\x{1F600}", {"AB\xF0\x9F\x98\x80"}, {"AB"}},
      {"[]a]", {"]", "a"}, {"b"}},
      {"a|", {"a", ""}, {"b"}},
      {"(?<year>\\d{4})-(?P<m>\\d\\d)", {"2024-05"}, {"2024-5"}},
      {"\\p{Lu}\\p{Greek}", {"A\xCE\xB1"}, {"a\xCE\xB1"}},
      {"a{,2}b{x}", {"aab{x}", "b{x}"}, {"aaab{x}"}},
      {"\\.\\-\\/\\[", {".-/["}, {"a-/["}},
      {"a^b|c$d|$|^$", {""}, {"ab", "cd"}},
  };
  for (const Case& c : cases) {
    const auto grammar = compiled(regex(c.pattern));
    for (const std::string& text : c.in) {
      EXPECT_TRUE(grammar->matches(text)) << c.pattern << " on " << text;
    }
    for (const std::string& text : c.out) {
      EXPECT_FALSE(grammar->matches(text)) << c.pattern << " on " << text;
    }
  }
}

TEST(Grammar, RefusesIrregularPatternsByName) {
  for (const char* pattern : {"(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", "(a)\\1", "\\bword",
                              "(?i)a", "(?>a)", "a++", "\\k<x>", "[[:alpha:]]", "(*FAIL)", "\\q"}) {
    EXPECT_EQ(regex_error(pattern), ErrorCode::kUnsupported) << pattern;
  }
  for (const char* pattern : {"(a", "a)", "[a", "*a", "a{3,2}", "\\", "[z-a]", "\\x4", "\\p{Nope}",
                              "a**", "(?<n", "\xFF", "\\ud800"}) {
    EXPECT_EQ(regex_error(pattern), ErrorCode::kInvalidArgument) << pattern;
  }
  for (const char* pattern : {"((a{100}){100}){100}", "a{99999}"}) {
    EXPECT_EQ(regex_error(pattern), ErrorCode::kExhausted) << pattern;
  }
  EXPECT_EQ(regex_error("a$b"), ErrorCode::kInvalidArgument);  // never satisfied
  EXPECT_EQ(regex_error("[^\\s\\S]"), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace protean
