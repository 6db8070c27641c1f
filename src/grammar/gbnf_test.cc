#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "grammar/gbnf_parser.h"
#include "grammar/grammar.h"
#include "grammar/stack_sets.h"

namespace protean {
namespace {

using grammar::GbnfNode;
using grammar::GbnfSyntax;
using grammar::SetId;
using grammar::StackSets;
using Kind = GbnfNode::Kind;

Result<std::shared_ptr<const Grammar>> compiled_gbnf(std::string text) {
  return Grammar::compile({GbnfText{std::move(text)}});
}

struct GbnfCase {
  std::string text;
  std::vector<std::string> in;
  std::vector<std::string> out;
};

void expect_texts(const GbnfCase& c) {
  const auto made = compiled_gbnf(c.text);
  ASSERT_TRUE(made.ok()) << c.text << ": " << made.error().message;
  for (const std::string& text : c.in) {
    EXPECT_TRUE((*made)->matches(text)) << c.text << " on " << text;
  }
  for (const std::string& text : c.out) {
    EXPECT_FALSE((*made)->matches(text)) << c.text << " on " << text;
  }
}

TEST(Gbnf, MatchesTheTextsOfItsRules) {
  const std::vector<GbnfCase> cases{
      {"root ::= \"a\" \"b\"", {"ab"}, {"a", "b", "abc", ""}},
      {"root ::= \"yes\" | \"no\"\n", {"yes", "no"}, {"y", "yesno"}},
      {"root ::= |\n  \"x\"", {"", "x"}, {"xx"}},
      {"root ::= \"ab\"* \"c\"+ \"d\"?", {"c", "ababccd"}, {"", "abd", "cdd", "abac"}},
      {"root ::= [a-cx_] [^0-9\\n] [-] [a-]", {"bz--", "x!-a"}, {"dz--", "b1--", "b\n--"}},
      {"root ::= . .", {"\n\xE2\x82\xAC"}, {"a", "abc"}},
      {"root ::= \"a\"{2} \"b\"{1,3} \"c\"{2,} \"d\"{0,1} \"e\"{,2}",
       {"aabcc", "aabbbccccdee"},
       {"abcc", "aabbbbcc", "aabc", "aabccdd", "aabcceee"}},
      {"root ::= (\"a\" | \"b\" \"c\")+ # a comment\n# another one\n", {"a", "abcbc"}, {"", "ab"}},
      {"root ::= (\n  \"a\" # inside\n  \"b\"\n)\nrest ::= \"unused\"", {"ab"}, {"a"}},
      {"item-1 ::= [0-9]\nroot ::= item-1 (\", \" item-1)*", {"1", "1, 2, 3"}, {"1,2", ""}},
      {"root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\\"\\\\\"",
       {"A\xC3\xA9\xF0\x9F\x98\x80\n\t\"\\"},
       {"A"}},
      {"root ::= \"\" \"a\"", {"a"}, {""}},
      {"root ::= (\"a\"? \"b\"?){3}", {"", "ab", "ababab", "bbb"}, {"abababa", "aaaa"}},
      {"root ::= (\"a\"{2,3} \";\"){2}", {"aa;aaa;"}, {"aa;a;", "aa;aa;aa;"}},
      {"root ::= \"a\"*?", {"", "aaa"}, {"b"}},
      {"root ::= [あ-ん]+", {"\xE3\x81\x8B"}, {"a"}},
  };
  for (const GbnfCase& c : cases) {
    expect_texts(c);
  }
}

TEST(Gbnf, RulesReferToEachOther) {
  expect_texts(
      {"root ::= \"(\" root \")\" root | \"\"", {"", "()", "(()())()"}, {"(", ")(", "(()"}});
  expect_texts({"root ::= expr\nexpr ::= term ([-+] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
                {"1", "1+(2-3)-44"},
                {"1+", "(1", "()"}});
  // At the end of a rule, a reference takes no stack.
  const auto list = compiled_gbnf("root ::= [0-9] root | end\nend ::= \".\"");
  EXPECT_TRUE((*list)->matches(std::string(20000, '7') + "."));
}

// Where stacks are deep, nothing is begun that needs deeper ones than it must.
TEST(Gbnf, EachTextThatBeginsCanEnd) {
  for (const char* text : {"root ::= \"(\" root \")\" | \"x\"",
                           "root ::= \"(\" b \")\"\nb ::= \"[\" root \"]\" | \"y\"",
                           "root ::= \"{\" (root \",\")* \"}\"", "root ::= \"<\" root{0,3} \">\"",
                           "root ::= \"<\" (root \";\"){2,3} \">\" | \"1\""}) {
    const auto made = compiled_gbnf(text);
    ASSERT_TRUE(made.ok()) << made.error().message;
    StackSets stacks(*(*made)->automaton());
    SetId set = stacks.start();
    std::size_t read = 0;
    const auto take = [&](std::string_view bytes) {
      for (const char byte : bytes) {
        const SetId next = stacks.step(set, static_cast<std::uint8_t>(byte));
        if (next != grammar::kNoStacks) {
          set = next;
          ++read;
          return true;
        }
      }
      return false;
    };
    for (int n = 0; n < 3000 && take("([{<"); ++n) {
    }
    EXPECT_GT(read, 300U) << text;
    const std::size_t deepest = read;
    while (!stacks.at_end(set) && read < 20 * deepest && take(")]}>,;xy1")) {
    }
    EXPECT_TRUE(stacks.at_end(set)) << text << " is stuck after " << read;
  }
}

struct GbnfRefusal {
  const char* text;
  ErrorCode code;
  const char* says;
};

TEST(Gbnf, ErrorsSayWhere) {
  using enum ErrorCode;
  const GbnfRefusal refusals[] = {
      {"", kInvalidArgument, "line 1, column 1: the grammar has no rule \"root\""},
      {"start: \"a\"", kInvalidArgument,
       "line 1, column 7: expected \"::=\" after the name \"start\""},
      {"root ::= \"a\"\nroot ::= \"b\"", kInvalidArgument,
       "line 2, column 1: the rule \"root\" is defined twice"},
      {"root ::= \"a\"\n  other", kInvalidArgument, "line 2, column 8: expected \"::=\""},
      {"root ::= item", kInvalidArgument, "line 1, column 10: the rule \"item\" is not defined"},
      {"root ::= \"a", kInvalidArgument, "line 1, column 10: the text that begins here"},
      {"root ::= [a", kInvalidArgument, "line 1, column 10: the class that begins here"},
      {"root ::= []", kInvalidArgument, "line 1, column 10: a class in brackets needs"},
      {"root ::= [z-a]", kInvalidArgument, "line 1, column 11: the last character of a range"},
      {"root ::= (\"a\"", kInvalidArgument, "expected \")\", found the end of the grammar"},
      {"root ::= \"a\" )", kInvalidArgument,
       "line 1, column 14: expected the end of the line, found \")\""},
      {"root ::= \"é\" \"\\q\"", kInvalidArgument, "line 1, column 15: unknown escape"},
      {"root ::= \"\\u12\"", kInvalidArgument, "the escape needs 4 hexadecimal digits"},
      {"root ::= \"\\ud800\"", kInvalidArgument, "no Unicode character"},
      {"root ::= \"a\"{3,2}", kInvalidArgument, "line 1, column 13: a repeat of {3,2}"},
      {"root ::= \"a\"{x}", kInvalidArgument, "line 1, column 14: expected a number, found \"x\""},
      {"root ::= * \"a\"", kInvalidArgument, "line 1, column 10: expected the end of the line"},
      {"root ::= \"a\"{1000000}", kExhausted, "more than 100000 rounds"},
      {"root ::= <think>", kUnsupported, "line 1, column 10: tokens in angle brackets"},
      {"root ::= \"a\" !</think>*", kUnsupported, "line 1, column 14: tokens in angle brackets"},
      {"root ::= root \"a\" | \"b\"", kUnsupported,
       "line 1, column 10: the rule \"root\" begins with itself"},
      {"root ::= a\na ::= \"x\"? b\nb ::= [0-9]* root \"y\"", kUnsupported,
       "line 3, column 14: the rule \"root\" begins"},
      {"root ::= \"a\" root", kInvalidArgument, "no finite text matches"},
      {"root ::= (\"a\"?){0,999}", kUnsupported,
       "line 1, column 16: what may be empty is repeated 999"},
  };
  for (const GbnfRefusal& refusal : refusals) {
    const auto made = compiled_gbnf(refusal.text);
    ASSERT_FALSE(made.ok()) << refusal.text;
    EXPECT_EQ(made.error().code, refusal.code) << refusal.text;
    EXPECT_NE(made.error().message.find(refusal.says), std::string::npos)
        << refusal.text << "\nsays: " << made.error().message;
  }
  EXPECT_FALSE(compiled_gbnf("root ::= " + std::string(100, '(')).ok());
}

// Writes a random right-hand side over the letters a and b and the rules 0 to `rules` - 1.
std::string random_side(std::mt19937& random, int rules, int depth) {
  const auto below = [&](unsigned n) { return random() % n; };
  switch (depth == 0 ? below(4) : below(8)) {
    case 0:
      return below(2) == 0 ? "\"a\"" : "\"b\"";
    case 1:
      return "\"ab\"";
    case 2:
      return below(2) == 0 ? "[ab]" : "[^a]";
    case 3:
      return below(3) == 0 ? "\"\""
                           : "\"a\" r" + std::to_string(below(static_cast<unsigned>(rules)));
    case 4:
      return "r" + std::to_string(below(static_cast<unsigned>(rules)));
    case 5: {
      static const char* const kRepeats[] = {"*", "+", "?", "{2}", "{1,2}", "{2,}", "{0,3}"};
      return "(" + random_side(random, rules, depth - 1) + ")" + kRepeats[below(7)];
    }
    case 6:
      return "(" + random_side(random, rules, depth - 1) + " | " +
             random_side(random, rules, depth - 1) + ")";
    default:
      return random_side(random, rules, depth - 1) + " " + random_side(random, rules, depth - 1);
  }
}

// Finds the ends of matches by the definition of each node, without an automaton.
class GbnfReference {
 public:
  GbnfReference(const GbnfSyntax& syntax, std::string_view text) : syntax_(syntax), text_(text) {}

  bool matches() { return ends(syntax_.rules[syntax_.root].body, 0).contains(text_.size()); }

 private:
  using Ends = std::set<std::size_t>;

  Ends ends_of_all(const GbnfNode& node, const Ends& begins) {
    Ends all;
    for (const std::size_t at : begins) {
      all.merge(ends(node, at));
    }
    return all;
  }

  Ends ends(const GbnfNode& node, std::size_t at) {
    switch (node.kind) {
      case Kind::kText:
        return text_.substr(at).starts_with(node.text) ? Ends{at + node.text.size()} : Ends{};
      case Kind::kCharacter:
        return at < text_.size() && node.characters.contains(text_[at]) ? Ends{at + 1} : Ends{};
      case Kind::kReference:
        return ends(syntax_.rules[node.rule].body, at);
      case Kind::kSequence: {
        Ends now{at};
        for (const GbnfNode& part : node.parts) {
          now = ends_of_all(part, now);
        }
        return now;
      }
      case Kind::kAlternatives: {
        Ends all;
        for (const GbnfNode& part : node.parts) {
          all.merge(ends(part, at));
        }
        return all;
      }
      case Kind::kRepeat: {
        Ends all;
        Ends now{at};
        // After as many rounds as there are characters, further ones are empty.
        const std::size_t most =
            std::min<std::size_t>(node.loop.most, node.loop.least + text_.size() + 1);
        for (std::size_t round = 0; round <= most; ++round) {
          if (round >= node.loop.least) {
            all.insert(now.begin(), now.end());
          }
          now = ends_of_all(node.parts.front(), now);
        }
        return all;
      }
    }
    return {};
  }

  const GbnfSyntax& syntax_;
  const std::string_view text_;
};

TEST(Gbnf, RandomGrammarsMatchWhatTheirDefinitionSays) {
  std::mt19937 random(7);
  int compared = 0;
  int matched = 0;
  for (int n = 0; n < 600; ++n) {
    std::string text = "root ::= " + random_side(random, 3, 3) + "\n";
    for (int rule = 0; rule < 3; ++rule) {
      text += "r" + std::to_string(rule) + " ::= " + random_side(random, 3, 2) + " | " +
              random_side(random, 3, 0) + "\n";
    }
    const auto made = compiled_gbnf(text);
    if (!made) {
      const bool infinite = made.error().message.find("no finite text") != std::string::npos;
      EXPECT_TRUE(infinite || made.error().message.find("begins with itself") != std::string::npos)
          << text << made.error().message;
      continue;
    }
    const auto syntax = grammar::parse_gbnf(text);
    ASSERT_TRUE(syntax.ok());
    for (unsigned bits = 1; bits < 64; ++bits) {  // all texts of up to 5 letters
      std::string word;
      for (unsigned rest = bits; rest > 1; rest >>= 1) {
        word += (rest & 1) != 0 ? 'a' : 'b';
      }
      const bool expected = GbnfReference(*syntax, word).matches();
      ASSERT_EQ((*made)->matches(word), expected) << text << " on \"" << word << '"';
      ++compared;
      matched += expected ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 10000);
  EXPECT_GT(matched, 1000);
}

}  // namespace
}  // namespace protean
