#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <memory>
#include <random>
#include <thread>

#include "grammar/compiled.h"
#include "grammar/grammar.h"
#include "grammar/mask_caches.h"
#include "grammar/schema_compiler.h"
#include "grammar/token_table.h"
#include "tests/grammar/naive_automaton.h"
#include "tests/grammar/random_model.h"
#include "tests/grammar/token_list.h"

namespace protean {
namespace {

using grammar::Automaton;

const std::vector<const char*>& schemas() {
  static const std::vector<const char*> kSchemas{
      "true",
      R"({"type":"object"})",
      R"({"type":"string","minLength":3,"maxLength":9})",
      R"({"type":"string","maxLength":300})",
      R"({"type":"string","minLength":280})",
      R"({"type":"string","pattern":"^[a-c\\u00e9]{2,5}(x|\\u20ac)*$"})",
      R"({"type":"string","pattern":"b"})",
      R"({"type":"array","items":{"type":"string","maxLength":2},"minItems":1,"maxItems":4})",
      R"({"type":"array","items":{"type":"array","items":{"type":"integer"},"maxItems":2},
          "maxItems":3})",
      R"({"type":"object","properties":{"a":{"type":"integer","minimum":-12,"maximum":340},
          "ab":{"type":"string"},"b":{"enum":["x","xy",12,{"k":[1]}]}},"required":["ab"]})",
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":4}},
          "additionalProperties":{"type":"boolean"},"maxProperties":3})",
      R"({"type":"object","patternProperties":{"^a":{"type":"integer"},"b$":{"type":"integer"}},
          "additionalProperties":false})",
      R"({"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#"}},
          {"type":"array","items":{"$ref":"#"},"maxItems":2}]})",
      R"({"anyOf":[{"type":"string","maxLength":3},{"type":"string","pattern":"^a*$"}]})",
      R"({"type":"number","minimum":0.25,"exclusiveMaximum":12.5})",
      R"({"type":"object","properties":{"d":{"format":"date"},"e":{"format":"email"}},
          "required":["d","e"]})",
  };
  return kSchemas;
}

Automaton automaton_of(const char* schema, bool any_whitespace) {
  grammar::AutomatonBuilder builder;
  const grammar::StateId begin = builder.state();
  const grammar::StateId end = builder.state();
  builder.final(end);
  const JsonSchema source{.schema = boost::json::parse(schema), .any_whitespace = any_whitespace};
  EXPECT_TRUE(grammar::emit_schema(builder, source, begin, end).ok());
  auto built = builder.build(begin);
  EXPECT_TRUE(built.ok()) << schema;
  return std::move(*built);
}

// A bit is set exactly where the token's bytes lead to some stack of the naive automaton.
void compare_masks(const char* schema, const Tokenizer& tokenizer, std::uint32_t seed) {
  const auto automaton = std::make_shared<const Automaton>(automaton_of(schema, seed % 2 == 0));
  const auto table = std::make_shared<const grammar::TokenTable>(
      tokenizer, tokenizer.vocab_size() + 70, std::vector<TokenId>{tokenizer.eos()});
  grammar::MaskCache cache(automaton, table);
  const NaiveAutomaton naive(*automaton);
  std::mt19937 random(seed);
  NaiveAutomaton::Stacks stacks = naive.start();
  grammar::SetId set = cache.start();
  std::string text;
  for (int n = 0; n < 40; ++n) {
    std::vector<std::uint64_t> mask(table->mask_words(), ~std::uint64_t{0});
    cache.mask(set, mask);
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < table->vocab(); ++id) {
      const bool bit = (mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1U) != 0;
      const bool expected =
          id == tokenizer.eos()
              ? NaiveAutomaton::at_end(stacks)
              : id < tokenizer.vocab_size() && !naive.read(stacks, tokenizer.bytes(id)).empty();
      ASSERT_EQ(bit, expected) << schema << " after " << text << ": token " << id;
      if (bit && id != tokenizer.eos()) {
        allowed.push_back(id);
      }
    }
    if (allowed.empty()) {
      break;
    }
    const TokenId token = allowed[random() % allowed.size()];
    stacks = naive.read(stacks, tokenizer.bytes(token));
    set = cache.advance(set, token);
    text += tokenizer.bytes(token);
  }
}

TEST(GrammarMasks, AreThoseOfTheNaiveAutomaton) {
  const TokenList tokenizer = TokenList::json_pieces();
  for (const char* schema : schemas()) {
    for (std::uint32_t seed = 0; seed < 6; ++seed) {
      compare_masks(schema, tokenizer, seed);
    }
  }
}

TEST(GrammarMasks, WithTokensLongerThanBounds) {
  std::vector<std::string> tokens;
  for (int length = 1; length < 60; ++length) {
    tokens.emplace_back(static_cast<std::size_t>(length), 'a');
    tokens.push_back(std::string(static_cast<std::size_t>(length), 'a') + '"');
  }
  for (const char* piece : {"\"", "\"a", "\\n", "{", "}", "[", "]", ",", ":", "1", " "}) {
    tokens.emplace_back(piece);
  }
  const TokenList tokenizer(tokens);
  for (const char* schema :
       {R"({"type":"string","minLength":50,"maxLength":130})",
        R"({"type":"string","maxLength":40})", R"({"type":"string","minLength":130})"}) {
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
      compare_masks(schema, tokenizer, seed);
    }
  }
}

TEST(GrammarMasks, AreKeptWhileManyGrammarsTakeTurns) {
  const TokenList tokenizer = TokenList::json_pieces();
  grammar::MaskCaches caches(std::make_shared<const grammar::TokenTable>(
      tokenizer, tokenizer.vocab_size(), std::vector<TokenId>{tokenizer.eos()}));
  std::vector<std::shared_ptr<const Automaton>> automata;
  std::vector<std::shared_ptr<grammar::MaskCache>> first;
  for (std::size_t n = 0; n < 100; ++n) {
    const std::string schema = R"({"type":"string","maxLength":)" + std::to_string(n) + "}";
    automata.push_back(std::make_shared<const Automaton>(automaton_of(schema.c_str(), true)));
    first.push_back(caches.find(automata[n], automata[n]->hash()));
    first[n]->warm();
    EXPECT_GT(first[n]->bytes(), 0U);
  }
  for (std::size_t n = 0; n < automata.size(); ++n) {
    EXPECT_EQ(caches.find(automata[n], automata[n]->hash()), first[n]) << n;
  }
  EXPECT_NE(caches.replace(automata[5], automata[5]->hash(), first[5].get()), first[5]);
}

TEST(GrammarMasks, OfTheGrammarsUsedLongestAgoAreForgotten) {
  const TokenList tokenizer = TokenList::json_pieces();
  grammar::MaskCaches caches(std::make_shared<const grammar::TokenTable>(
      tokenizer, tokenizer.vocab_size(), std::vector<TokenId>{tokenizer.eos()}));
  std::vector<std::weak_ptr<grammar::MaskCache>> made;
  for (std::size_t n = 0; n < 2 * grammar::MaskCaches::kMost; ++n) {
    const std::string schema = R"({"type":"string","maxLength":)" + std::to_string(n) + "}";
    const auto automaton = std::make_shared<const Automaton>(automaton_of(schema.c_str(), true));
    made.push_back(caches.find(automaton, automaton->hash()));
  }
  EXPECT_TRUE(made.front().expired());
  EXPECT_FALSE(made.back().expired());
  const auto kept =
      std::count_if(made.begin(), made.end(), [](const auto& cache) { return !cache.expired(); });
  EXPECT_EQ(kept, static_cast<std::ptrdiff_t>(grammar::MaskCaches::kMost));
}

std::shared_ptr<const Grammar> compiled(const char* schema) {
  auto grammar = Grammar::compile({JsonSchema{.schema = boost::json::parse(schema)}});
  EXPECT_TRUE(grammar.ok()) << schema;
  return *grammar;
}

TEST(GrammarMasks, RandomAnswersMatchTheirGrammar) {
  const TokenList tokenizer = TokenList::json_pieces();
  const GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  std::mt19937 random(7);
  for (const char* schema : schemas()) {
    const auto grammar = compiled(schema);
    const Automaton automaton = automaton_of(schema, true);
    RandomModel model(tokenizer, automaton);
    for (int n = 0; n < 20; ++n) {
      const auto constraint = tokens.constrain(grammar);
      const auto answer = model.write(*constraint, random, n * 4, 2000);
      EXPECT_EQ(answer.broken, "") << schema << ": " << answer.text;
      EXPECT_TRUE(answer.ended) << schema << ": " << answer.text;
      EXPECT_TRUE(grammar->matches(answer.text)) << schema << ": " << answer.text;
    }
  }
}

TEST(GrammarMasks, AreAFunctionOfTheAnswer) {
  const TokenList tokenizer = TokenList::json_pieces();
  const GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  const auto grammar = compiled(schemas()[9]);
  const auto mask_after = [&](TokenConstraint& constraint, std::string_view text) {
    std::vector<TokenId> answer;
    for (const char byte : text) {
      answer.push_back(static_cast<std::uint8_t>(byte));
    }
    std::vector<std::uint64_t> mask(token_mask_words(tokenizer.vocab_size()));
    constraint.allowed_after(answer, mask);
    return mask;
  };
  const auto used = tokens.constrain(grammar);
  for (const char* text : {"", "{\"a\":12", "{\"a\":1", "{\"ab\":\"x", "{\"a\":12,", "{",
                           "{\"ab\":\"x\"}", "no", "{\"ab"}) {
    EXPECT_EQ(mask_after(*used, text), mask_after(*tokens.constrain(grammar), text)) << text;
  }
  // Where nothing can follow, the answer may at least end.
  std::vector<std::uint64_t> only_end(token_mask_words(tokenizer.vocab_size()), 0);
  only_end[static_cast<std::size_t>(tokenizer.eos()) / 64] |= std::uint64_t{1}
                                                              << (tokenizer.eos() % 64);
  EXPECT_EQ(mask_after(*used, "no"), only_end);
  EXPECT_EQ(mask_after(*used, "{\"ab\":\"x\"}"), only_end);
}

TEST(GrammarMasks, AVocabularyThatLacksBytesEndsTheAnswer) {
  const TokenList tokenizer({"{", "\"", "a"});
  const GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  const auto constraint =
      tokens.constrain(compiled(R"({"type":"object","properties":{"a":{}},"required":["a"]})"));
  std::vector<std::uint64_t> mask(1);
  constraint->allowed_after(std::vector<TokenId>{0, 1, 2, 1}, mask);
  EXPECT_EQ(mask[0], std::uint64_t{1} << tokenizer.eos());
}

// The bytes of JSON but for some that no token holds.
TokenList without(std::string_view bytes) {
  const TokenList all = TokenList::json_pieces();
  std::vector<std::string> tokens;
  for (TokenId id = 0; id < all.eos(); ++id) {
    if (all.bytes(id).find_first_of(bytes) == std::string_view::npos) {
      tokens.emplace_back(all.bytes(id));
    }
  }
  return TokenList(std::move(tokens));
}

TEST(GrammarMasks, WhatTheVocabularyLacksIsLeftOut) {
  const TokenList tokenizer = without("{\\e");
  const GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  std::mt19937 random(11);
  for (const char* schema :
       {R"({"anyOf":[{"type":"object"},{"type":"integer"},{"type":"array","items":true}]})",
        R"({"type":["boolean","null","string"],"maxLength":12})",
        R"({"enum":[true,{"a":1},"\\","xyz"]})", R"({"type":"array","items":{"type":"number"}})"}) {
    const auto grammar = compiled(schema);
    const auto part = tokens.prepare(grammar);
    ASSERT_TRUE(part.ok()) << schema << ": " << part.error().message;
    const Automaton automaton = automaton_of(schema, true);
    RandomModel model(tokenizer, automaton);
    for (int n = 0; n < 25; ++n) {
      const auto answer = model.write(*tokens.constrain(*part), random, n * 2, 2000);
      EXPECT_EQ(answer.broken, "") << schema << ": " << answer.text;
      EXPECT_TRUE(answer.ended) << schema << ": " << answer.text;
      EXPECT_TRUE(grammar->matches(answer.text)) << schema << ": " << answer.text;
    }
  }
}

TEST(GrammarMasks, WhatCannotBeWrittenAtAllIsRefused) {
  const auto complaint = [](const TokenList& tokenizer, GrammarSource source) {
    const GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
    const auto grammar = Grammar::compile(source);
    EXPECT_TRUE(grammar.ok());
    const auto part = tokens.prepare(*grammar);
    return part.ok() ? "" : part.error().message;
  };
  const auto json = [](const char* schema) {
    return GrammarSource{JsonSchema{.schema = boost::json::parse(schema)}};
  };
  EXPECT_NE(complaint(without("{"), json(R"({"type":"object"})")).find("holds \"{\";"),
            std::string::npos);
  EXPECT_NE(
      complaint(without("\"#"), json(R"({"type":"object","minProperties":1})")).find("holds '\"';"),
      std::string::npos);
  EXPECT_NE(complaint(without("\x98"), {RegexPattern{"a*\xF0\x9F\x98\x80"}}).find("the byte 0x98"),
            std::string::npos);
  EXPECT_EQ(complaint(without("\""), json(R"({"type":"object"})")), "") << "{} is an object";
  EXPECT_EQ(complaint(without("{"), {RegexPattern{"\\{|x"}}), "");
  EXPECT_EQ(complaint(without("{"), {RegexPattern{"\\{*"}}), "") << "it may be empty";
  // A byte that is only found in a longer token.
  EXPECT_NE(complaint(TokenList({"{a", "}"}), {LiteralText{"{}"}}).find("can be the first"),
            std::string::npos);
  EXPECT_EQ(complaint(TokenList({"{}"}), {LiteralText{"{}"}}), "");
}

// Many requests of few grammars from several threads get what one thread gets.
TEST(GrammarMasks, AreTheSameFromManyThreads) {
  const TokenList tokenizer = TokenList::json_pieces();
  const auto write_all = [&](const GrammarTokens& tokens, std::uint32_t seed) {
    std::string all;
    for (const char* schema : schemas()) {
      const auto grammar = compiled(schema);
      const Automaton automaton = automaton_of(schema, true);
      RandomModel model(tokenizer, automaton);
      std::mt19937 random(seed);
      all += model.write(*tokens.constrain(grammar), random, 30, 600).text + "\n";
    }
    return all;
  };
  const GrammarTokens shared(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { texts[t] = write_all(shared, t / 2); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::uint32_t t = 0; t < 4; ++t) {
    const GrammarTokens alone(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
    EXPECT_EQ(texts[t], write_all(alone, t / 2));
  }
}

}  // namespace
}  // namespace protean
