#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/known_pre_tokenizers.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/regex.h"

namespace protean {
namespace {

using Behavior = PreTokenizer::Behavior;
using Texts = std::vector<std::string>;

Regex regex(std::string_view pattern) {
  Result<Regex> compiled = Regex::compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.error().message;
  return std::move(*compiled);
}

Texts found(const Regex& pattern, std::string_view text) {
  std::vector<Regex::Match> matches;
  pattern.find_all(text, matches);
  Texts out;
  for (const Regex::Match& match : matches) {
    out.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  return out;
}

Texts pieces(const PreTokenizer& pre_tokenizer, std::string_view text, bool at_start = true) {
  const PreTokenizer::Pieces split = pre_tokenizer.split(text, at_start);
  return {split.pieces.begin(), split.pieces.end()};
}

Texts split(std::string_view pattern, Behavior behavior, bool invert, std::string_view text) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.add(PreTokenizer::Split{regex(pattern), behavior, invert});
  return pieces(pre_tokenizer, text);
}

Texts known(std::string_view name, std::string_view text) {
  const auto pre = known_pre_tokenizer(name);
  EXPECT_TRUE(pre.ok()) << pre.error().message;
  return pieces(pre->pre_tokenizer, text);
}

TEST(Regex, FindsFromLeftToRight) {
  EXPECT_EQ(found(regex(R"(\p{N}{1,3})"), "12345 67"), (Texts{"123", "45", "67"}));
  EXPECT_EQ(found(regex("x*"), "axxb"), (Texts{"", "xx", ""}));
  EXPECT_EQ(found(regex("(?=b)"), "abab"), (Texts{"", ""}));
  EXPECT_EQ(found(regex(R"(\w+)"), "\xD0\xBD\xD0\xB5\xFF\xD0\xBD"),
            (Texts{"\xD0\xBD\xD0\xB5", "\xD0\xBD"}));
  EXPECT_EQ(found(regex("a$"), "a\nb"), (Texts{"a"}));  // as in Oniguruma
}

TEST(Regex, LiteralsAreLiteral) {
  for (const char* text : {"a.b", "\\E", "\\Q\\E\\", "x\\E\\Ey", "."}) {
    const Result<Regex> literal = Regex::literal(text);
    ASSERT_TRUE(literal.ok()) << literal.error().message;
    EXPECT_EQ(found(*literal, std::string("z") + text + "axb"), (Texts{text})) << text;
  }
}

TEST(Regex, RefusesPatternsThatPcre2ReadsDifferently) {
  EXPECT_FALSE(Regex::compile("(").ok());
  EXPECT_FALSE(Regex::compile(R"([\p{L}&&[^\p{Han}]])").ok());
  EXPECT_FALSE(Regex::compile(R"(\C)").ok());
  EXPECT_FALSE(Regex::compile(std::string(100000, 'a')).ok());
}

TEST(Regex, HostilePatternsEnd) {
  const std::string text(200, 'a');
  EXPECT_EQ(found(regex("(a+)+b"), text), Texts{});
  EXPECT_EQ(found(regex("((a|b)*)*\\z"), std::string(100000, 'a') + "c").size(), 0u);
}

TEST(PreTokenizer, SplitBehaviors) {
  EXPECT_EQ(split("-", Behavior::kIsolated, false, "a--b-"), (Texts{"a", "-", "-", "b", "-"}));
  EXPECT_EQ(split("-", Behavior::kRemoved, false, "a--b-"), (Texts{"a", "b"}));
  EXPECT_EQ(split("-", Behavior::kContiguous, false, "a--b-"), (Texts{"a", "--", "b", "-"}));
  EXPECT_EQ(split("-", Behavior::kMergedWithPrevious, false, "a--b-"), (Texts{"a-", "-", "b-"}));
  EXPECT_EQ(split("-", Behavior::kMergedWithNext, false, "a--b-"), (Texts{"a", "-", "-b", "-"}));
  EXPECT_EQ(split("[a-z]+", Behavior::kRemoved, true, "a--b-"), (Texts{"a", "b"}));
  EXPECT_EQ(split(R"((?=(\d{3})+(?!\d)))", Behavior::kIsolated, false, "1234567"),
            (Texts{"1", "234", "567"}));
}

TEST(PreTokenizer, MetaspaceAndPrefixSpace) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  const auto metaspace = [](Prepend prepend, std::string_view text, bool at_start) {
    PreTokenizer pre_tokenizer;
    pre_tokenizer.add(PreTokenizer::Metaspace{"_", prepend});
    pre_tokenizer.add(PreTokenizer::Split{regex("_"), Behavior::kMergedWithNext});
    return pieces(pre_tokenizer, text, at_start);
  };
  EXPECT_EQ(metaspace(Prepend::kAlways, "Hey you", false), (Texts{"_Hey", "_you"}));
  EXPECT_EQ(metaspace(Prepend::kAlways, " Hey", true), (Texts{"_Hey"}));
  EXPECT_EQ(metaspace(Prepend::kFirst, "Hey  you", true), (Texts{"_Hey", "_", "_you"}));
  EXPECT_EQ(metaspace(Prepend::kFirst, "Hey", false), (Texts{"Hey"}));
  EXPECT_EQ(metaspace(Prepend::kNever, "Hey", true), (Texts{"Hey"}));
  PreTokenizer prefix;
  prefix.add(PreTokenizer::PrefixSpace{});
  EXPECT_EQ(pieces(prefix, "a"), (Texts{" a"}));
  EXPECT_EQ(pieces(prefix, " a"), (Texts{" a"}));
  EXPECT_EQ(pieces(prefix, ""), Texts{});
}

TEST(PreTokenizer, KnownNames) {
  EXPECT_EQ(known("gpt-2", "I'll pay 1234  now\n"),
            (Texts{"I", "'ll", " pay", " 1234", " ", " now", "\n"}));
  EXPECT_EQ(known("llama-bpe", "I'LL pay 1234!\n\n x"),
            (Texts{"I", "'LL", " pay", " ", "123", "4", "!\n\n", " x"}));
  EXPECT_EQ(known("qwen2", "x12"), (Texts{"x", "1", "2"}));
  EXPECT_EQ(known("smollm", "x 12"), (Texts{"x", " ", "1", "2"}));
  EXPECT_EQ(known("gpt-4o", "camelCase's"), (Texts{"camel", "Case's"}));
  EXPECT_EQ(known("tekken", "HTTPServer42"), (Texts{"HTTPServer", "4", "2"}));
  EXPECT_EQ(known("deepseek-v3", "a1234\xE6\x88\x91\xE6\x83\xB3"),
            (Texts{"a", "123", "4", "\xE6\x88\x91\xE6\x83\xB3"}));
  EXPECT_FALSE(known_pre_tokenizer("").ok());
}

TEST(Normalizer, StepsInOrder) {
  Normalizer normalizer;
  normalizer.add(Normalizer::Unicode::kNfc);
  normalizer.add(Normalizer::Unicode::kLowercase);
  normalizer.add(Normalizer::Prepend{"_"});
  normalizer.add(Normalizer::Replace{" ", "__"});
  normalizer.add(Normalizer::ReplaceMatches{regex("[0-9]+"), "N"});
  EXPECT_EQ(normalizer.apply("E\xCC\x81 A12"), "_\xC3\xA9__aN");
  EXPECT_EQ(normalizer.apply_inside("A"), "a");
  EXPECT_EQ(normalizer.apply(""), "");
  // Broken bytes stay; the text around them is normalized.
  EXPECT_EQ(normalizer.apply("\xFF"
                             "E\xCC\x81\xE2\x96"),
            "_\xFF\xC3\xA9\xE2\x96");
}

TEST(Normalizer, UnicodeForms) {
  const auto apply = [](Normalizer::Unicode form, std::string_view text) {
    Normalizer normalizer;
    normalizer.add(form);
    return normalizer.apply(text);
  };
  EXPECT_EQ(apply(Normalizer::Unicode::kNfd, "\xC3\xA9"), "e\xCC\x81");
  EXPECT_EQ(apply(Normalizer::Unicode::kNfkc, "\xEF\xAC\x81"), "fi");
  EXPECT_EQ(apply(Normalizer::Unicode::kNfkd, "\xC2\xBD"),
            "1\xE2\x81\x84"
            "2");
  EXPECT_EQ(apply(Normalizer::Unicode::kNfc, "\xEF\xAC\x81"), "\xEF\xAC\x81");
}

struct Found {
  std::size_t begin, end;
  TokenId id;
  friend bool operator==(const Found&, const Found&) = default;
};

std::vector<Found> matches(const TokenMatcher& matcher, std::string_view text,
                           const TokenMatcher::Ranges& special_in = {}) {
  std::vector<Found> out;
  for (std::size_t from = 0;;) {
    const auto match = matcher.find(text, from, special_in);
    if (!match) {
      return out;
    }
    out.push_back({match->begin, match->end, match->id});
    from = match->end;
  }
}

TEST(TokenMatcher, LeftmostLongest) {
  TokenMatcher matcher;
  matcher.add({.content = "<a", .id = 1});
  matcher.add({.content = "<a>", .id = 2});
  matcher.add({.content = "<a>b<", .id = 3});
  EXPECT_EQ(matches(matcher, "x<a>b<a<"), (std::vector<Found>{{1, 6, 3}}));
  EXPECT_EQ(matches(matcher, "<a><<a"), (std::vector<Found>{{0, 3, 2}, {4, 6, 1}}));
  EXPECT_EQ(matches(matcher, "<"), std::vector<Found>{});
}

TEST(TokenMatcher, SpecialTokensLieWithinTheRangesGiven) {
  TokenMatcher matcher;
  matcher.add({.content = "<a", .id = 1, .special = true});
  matcher.add({.content = "<a>", .id = 2, .special = true});
  matcher.add({.content = "<b>", .id = 3});
  const std::string_view text = "<a><b><a><a>";
  const auto within = [&](std::vector<TextRange> ranges) { return matches(matcher, text, ranges); };
  EXPECT_EQ(within({}), (std::vector<Found>{{3, 6, 3}}));
  EXPECT_EQ(within({{0, 3}}), (std::vector<Found>{{0, 3, 2}, {3, 6, 3}}));
  EXPECT_EQ(within({{0, 2}}), (std::vector<Found>{{0, 2, 1}, {3, 6, 3}})) << "the longest inside";
  EXPECT_EQ(within({{1, 3}, {6, 8}, {8, 12}}),
            (std::vector<Found>{{3, 6, 3}, {6, 8, 1}, {9, 12, 2}}))
      << "no token crosses ranges";
}

TEST(TokenMatcher, StripsAndWordEdges) {
  TokenMatcher matcher;
  matcher.add({.content = "<m>", .id = 1, .lstrip = true});
  matcher.add({.content = "<r>", .id = 2, .rstrip = true});
  matcher.add({.content = "cat", .id = 3, .single_word = true});
  EXPECT_EQ(matches(matcher, "a \t<m> b"), (std::vector<Found>{{1, 6, 1}}));
  EXPECT_EQ(matches(matcher, "<r> \xC2\xA0 <m>"), (std::vector<Found>{{0, 7, 2}, {7, 10, 1}}));
  EXPECT_EQ(matches(matcher,
                    "cat concat cats \xC3\xA9"
                    "cat cat"),
            (std::vector<Found>{{0, 3, 3}, {22, 25, 3}}));
}

}  // namespace
}  // namespace protean
