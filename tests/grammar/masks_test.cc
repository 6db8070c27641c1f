#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/json/parse.hpp>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "grammar/grammar.h"
#include "grammar/mask_cache.h"
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

const JsonWhitespace kFreeWhitespace{"[ \\t]{0,2}|\\r?\\n *", "[ \\t]{0,2}|\\r?\\n *"};

Automaton automaton_of(const char* schema, const JsonWhitespace& whitespace = {}) {
  grammar::AutomatonBuilder builder;
  const grammar::StateId begin = builder.state();
  const grammar::StateId end = builder.state();
  builder.final(end);
  const JsonSchema source{.schema = boost::json::parse(schema), .whitespace = whitespace};
  EXPECT_TRUE(grammar::emit_schema(builder, source, begin, end).ok());
  auto built = builder.build(begin);
  EXPECT_TRUE(built.ok()) << schema;
  return std::move(*built);
}

// Expects a bit to be set exactly if the token's bytes lead to some stack of the naive automaton.
void compare_masks(const char* schema, const Tokenizer& tokenizer, std::uint32_t seed) {
  const auto automaton =
      std::make_shared<const Automaton>(automaton_of(schema, seed % 3 == 0   ? kFreeWhitespace
                                                             : seed % 3 == 1 ? kSpacedSeparators
                                                                             : JsonWhitespace{}));
  const auto table = std::make_shared<const grammar::TokenTable>(
      tokenizer, tokenizer.vocab_size() + 70, std::vector<TokenId>{tokenizer.eos()});
  grammar::MaskCache cache(schema, automaton, table,
                           std::make_shared<grammar::GrammarMemory>(std::size_t{64} << 20));
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

TEST(GrammarMasks, EqualThoseOfTheNaiveAutomaton) {
  const TokenList tokenizer = TokenList::json_pieces();
  for (const char* schema : schemas()) {
    for (std::uint32_t seed = 0; seed < 6; ++seed) {
      compare_masks(schema, tokenizer, seed);
    }
  }
}

TEST(GrammarMasks, EqualThoseOfTheNaiveAutomatonForTokensLongerThanBounds) {
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

// Expects the masks of the sets that single bytes lead to, the nearest to the start first, to equal
// those of a cache that was never reset. Token 0 to 255 are the bytes.
void expect_masks_of_a_new_cache(grammar::MaskCache& cache, grammar::MaskCache& fresh,
                                 std::size_t words) {
  std::vector<std::uint64_t> mask(words);
  std::vector<std::uint64_t> expected(words);
  std::vector<std::pair<grammar::SetId, grammar::SetId>> sets{{cache.start(), fresh.start()}};
  for (std::size_t i = 0; i < sets.size(); ++i) {
    cache.mask(sets[i].first, mask);
    fresh.mask(sets[i].second, expected);
    ASSERT_EQ(mask, expected) << cache.key() << ": set " << sets[i].first;
    for (TokenId byte = 0; byte < 256 && sets.size() < 256; ++byte) {
      const std::pair next(cache.advance(sets[i].first, byte), fresh.advance(sets[i].second, byte));
      ASSERT_EQ(next.first == grammar::kNoStacks, next.second == grammar::kNoStacks);
      if (next.first != grammar::kNoStacks && std::ranges::find(sets, next) == sets.end()) {
        sets.push_back(next);
      }
    }
  }
}

TEST(GrammarMasks, AreRightIfTheCacheIsResetWhileItWarms) {
  constexpr std::size_t kBudget = std::size_t{64} << 20;
  const TokenList tokenizer = TokenList::json_pieces();
  const auto table = std::make_shared<const grammar::TokenTable>(
      tokenizer, tokenizer.vocab_size(), std::vector<TokenId>{tokenizer.eos()});
  for (const char* schema : schemas()) {
    const auto automaton = std::make_shared<const Automaton>(automaton_of(schema));
    const auto memory = std::make_shared<grammar::GrammarMemory>(kBudget);
    grammar::MaskCache cache(schema, automaton, table, memory);
    std::atomic<bool> warmed = false;
    std::atomic<std::uint64_t> resets = 0;
    std::thread resetting([&] {
      while (!warmed) {
        // A thread that waits in lock() would rarely get the mutex between two rounds of warm().
        if (const std::unique_lock lock(cache.mutex(), std::try_to_lock); lock.owns_lock()) {
          memory->add_grammar(kBudget);  // exceeds the budget, so that generation() resets
          resets = cache.generation();
          memory->remove_grammar(kBudget);
        }
      }
    });
    while (resets == 0) {
      std::this_thread::yield();
    }
    cache.warm();
    warmed = true;
    resetting.join();
    grammar::MaskCache fresh(schema, automaton, table, memory);
    expect_masks_of_a_new_cache(cache, fresh, table->mask_words());
  }
}

GrammarSource json(const char* schema) {
  return {JsonSchema{.schema = boost::json::parse(schema)}};
}

// Returns a constraint of `tokens` by the schema, whose text is the key.
std::shared_ptr<TokenConstraint> constrain(GrammarTokens& tokens, const char* schema) {
  auto constraint = tokens.constrain(json(schema), schema);
  EXPECT_TRUE(constraint.ok()) << schema << ": " << constraint.error().message;
  return *constraint;
}

// Patterns that take some hundred KiB of memory each.
GrammarSource hard_pattern(int n) {
  return {RegexPattern{"(?:[a-z]{1,20}\\d+;?){1," + std::to_string(30 + n) + "}"}};
}

TEST(GrammarMemory, GrammarsAreKeptWithinTheBudget) {
  const TokenList tokenizer = TokenList::json_pieces();
  GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  for (int n = 0; n < 100; ++n) {
    const std::string schema = R"({"type":"string","maxLength":)" + std::to_string(n) + "}";
    ASSERT_TRUE(tokens.constrain(json(schema.c_str()), schema).ok());
  }
  for (int n = 0; n < 100; ++n) {
    EXPECT_TRUE(tokens.holds(R"({"type":"string","maxLength":)" + std::to_string(n) + "}")) << n;
  }
}

TEST(GrammarMemory, TheLeastRecentlyUsedGrammarsAreDroppedBeyondTheBudget) {
  constexpr std::size_t kBudget = std::size_t{8} << 20;
  const TokenList tokenizer = TokenList::json_pieces();
  GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()}, kBudget);
  constexpr int kPatterns = 60;
  std::size_t all_bytes = 0;
  for (int n = 0; n < kPatterns; ++n) {
    const std::size_t before = tokens.bytes();
    ASSERT_TRUE(tokens.constrain(hard_pattern(n), std::to_string(n)).ok()) << n;
    ASSERT_TRUE(tokens.constrain(hard_pattern(0), "0").ok());
    all_bytes += tokens.bytes() > before ? tokens.bytes() - before : 0;
    std::vector<std::uint64_t> mask(token_mask_words(tokenizer.vocab_size()));
    (*tokens.constrain(hard_pattern(0), "0"))->allowed_after({}, mask);
    EXPECT_LE(tokens.bytes(), kBudget) << n;
  }
  EXPECT_GT(all_bytes, kBudget) << "the patterns are too easy for this test";
  EXPECT_TRUE(tokens.holds("0")) << "it is used all the time";
  EXPECT_FALSE(tokens.holds("1"));
  EXPECT_TRUE(tokens.holds(std::to_string(kPatterns - 1)));
}

TEST(GrammarMemory, GrammarsInUseAreKeptAndOthersRefusedOnceMemoryIsFull) {
  const TokenList tokenizer = TokenList::json_pieces();
  GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()}, std::size_t{4} << 20);
  std::vector<std::shared_ptr<TokenConstraint>> in_use;
  for (int n = 0; n < 1000; ++n) {
    auto constraint = tokens.constrain(hard_pattern(n), std::to_string(n));
    if (!constraint) {
      EXPECT_EQ(constraint.error().code, ErrorCode::kUnavailable) << constraint.error().message;
      break;
    }
    in_use.push_back(*constraint);
  }
  ASSERT_LT(in_use.size(), 1000U);
  ASSERT_GT(in_use.size(), 1U);
  for (std::size_t n = 0; n < in_use.size(); ++n) {
    EXPECT_TRUE(tokens.holds(std::to_string(n))) << n;
  }
  in_use.clear();
  EXPECT_TRUE(tokens.constrain(hard_pattern(-1), "-1").ok()) << "the others are no longer in use";
}

TEST(GrammarMemory, AGrammarLargerThanTheBudgetIsRefused) {
  const TokenList tokenizer = TokenList::json_pieces();
  GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()}, std::size_t{64} << 10);
  const auto constraint = tokens.constrain(hard_pattern(0), "0");
  ASSERT_FALSE(constraint.ok());
  EXPECT_EQ(constraint.error().code, ErrorCode::kExhausted);
  EXPECT_NE(constraint.error().message.find("--grammar-memory"), std::string::npos);
  EXPECT_LT(tokens.bytes(), std::size_t{64} << 10);
}

TEST(GrammarMemory, GrammarsAreRefusedIfTheirMasksWouldBeWorkedOutInEveryStep) {
  constexpr int kVocab = 150'000;
  const TokenList tokenizer = TokenList::json_pieces();
  const auto table = std::make_shared<const grammar::TokenTable>(
      tokenizer, kVocab, std::vector<TokenId>{tokenizer.eos()});
  const auto memory = std::make_shared<grammar::GrammarMemory>(
      std::size_t{16} << 20, grammar::MaskCache::least_bytes(*table));
  grammar::MaskCaches caches(memory);
  const auto automaton = std::make_shared<const Automaton>(automaton_of("true"));
  std::vector<std::shared_ptr<grammar::MaskCache>> in_use;
  for (int n = 0; n < 256; ++n) {
    const auto added = caches.add(
        std::make_shared<grammar::MaskCache>(std::to_string(n), automaton, table, memory));
    if (!added) {
      EXPECT_EQ(added.error().code, ErrorCode::kUnavailable);
      EXPECT_NE(added.error().message.find("--grammar-memory"), std::string::npos);
      break;
    }
    in_use.push_back(*added);
  }
  EXPECT_GT(in_use.size(), 40U);
  std::vector<std::uint64_t> mask(table->mask_words());
  memory->resize_masks(0, std::size_t{16} << 20);  // keeps the budget exceeded
  for (const auto& cache : in_use) {
    const std::scoped_lock lock(cache->mutex());
    for (int step = 0; step < 10; ++step) {
      for (const char byte : {'[', '1', '"'}) {
        cache->mask(cache->advance(cache->start(), static_cast<std::uint8_t>(byte)), mask);
        ASSERT_EQ(cache->generation(), 0U) << cache->key() << " of " << in_use.size();
      }
    }
  }
  memory->resize_masks(std::size_t{16} << 20, 0);
  in_use.clear();
  EXPECT_TRUE(
      caches.add(std::make_shared<grammar::MaskCache>("later", automaton, table, memory)).ok());
}

TEST(GrammarMemory, MasksThatWereDroppedAreTheSameWhenWorkedOutAgain) {
  const TokenList tokenizer = TokenList::json_pieces();
  const auto write_all = [&](GrammarTokens& tokens) {
    std::vector<std::shared_ptr<TokenConstraint>> constraints;
    for (const char* schema : schemas()) {
      constraints.push_back(constrain(tokens, schema));
    }
    std::vector<std::vector<TokenId>> answers(constraints.size());
    std::vector<std::uint64_t> mask(token_mask_words(tokenizer.vocab_size()));
    std::mt19937 random(3);
    for (int n = 0; n < 60; ++n) {
      for (std::size_t i = 0; i < answers.size(); ++i) {
        constraints[i]->allowed_after(answers[i], mask);
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < tokenizer.eos(); ++id) {
          if ((mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1U) != 0) {
            allowed.push_back(id);
          }
        }
        if (!allowed.empty()) {
          answers[i].push_back(allowed[random() % allowed.size()]);
        }
      }
    }
    return std::pair(answers, tokens.bytes());
  };
  GrammarTokens roomy(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  const auto [expected, roomy_bytes] = write_all(roomy);
  const std::size_t budget = roomy_bytes / 2;
  GrammarTokens tight(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()}, budget);
  const auto [answers, tight_bytes] = write_all(tight);
  EXPECT_EQ(answers, expected);
  EXPECT_LT(tight_bytes, budget + budget / 4) << "of " << roomy_bytes;
}

std::shared_ptr<const Grammar> compiled(const char* schema) {
  auto grammar = Grammar::compile(json(schema));
  EXPECT_TRUE(grammar.ok()) << schema;
  return *grammar;
}

TEST(GrammarMasks, RandomAnswersMatchTheirGrammar) {
  const TokenList tokenizer = TokenList::json_pieces();
  GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  std::mt19937 random(7);
  for (const char* schema : schemas()) {
    const auto grammar = compiled(schema);
    const Automaton automaton = automaton_of(schema);
    RandomModel model(tokenizer, automaton);
    for (int n = 0; n < 20; ++n) {
      const auto constraint = constrain(tokens, schema);
      const auto answer = model.write(*constraint, random, n * 4, 2000);
      EXPECT_EQ(answer.broken, "") << schema << ": " << answer.text;
      EXPECT_TRUE(answer.ended) << schema << ": " << answer.text;
      EXPECT_TRUE(grammar->matches(answer.text)) << schema << ": " << answer.text;
    }
  }
}

TEST(GrammarMasks, DependOnTheAnswerOnly) {
  const TokenList tokenizer = TokenList::json_pieces();
  GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  const char* schema = schemas()[9];
  const auto mask_after = [&](TokenConstraint& constraint, std::string_view text) {
    std::vector<TokenId> answer;
    for (const char byte : text) {
      answer.push_back(static_cast<std::uint8_t>(byte));
    }
    std::vector<std::uint64_t> mask(token_mask_words(tokenizer.vocab_size()));
    constraint.allowed_after(answer, mask);
    return mask;
  };
  const auto used = constrain(tokens, schema);
  for (const char* text : {"", "{\"a\":12", "{\"a\":1", "{\"ab\":\"x", "{\"a\":12,", "{",
                           "{\"ab\":\"x\"}", "no", "{\"ab"}) {
    EXPECT_EQ(mask_after(*used, text), mask_after(*constrain(tokens, schema), text)) << text;
  }
  // If nothing can follow, the answer may end.
  std::vector<std::uint64_t> only_end(token_mask_words(tokenizer.vocab_size()), 0);
  only_end[static_cast<std::size_t>(tokenizer.eos()) / 64] |= std::uint64_t{1}
                                                              << (tokenizer.eos() % 64);
  EXPECT_EQ(mask_after(*used, "no"), only_end);
  EXPECT_EQ(mask_after(*used, "{\"ab\":\"x\"}"), only_end);
}

TEST(GrammarMasks, EndTheAnswerIfTheVocabularyLacksTheNextByte) {
  const TokenList tokenizer({"{", "\"", "a", ":1}"});  // no token is ":" alone
  GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  const auto constraint = constrain(
      tokens, R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})");
  std::vector<std::uint64_t> mask(1);
  constraint->allowed_after(std::vector<TokenId>{0, 1, 2, 1}, mask);
  EXPECT_EQ(mask[0], std::uint64_t{1} << tokenizer.eos());
}

// Returns json_pieces() without the tokens that hold one of `bytes`.
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

TEST(GrammarMasks, LeaveOutWhatTheVocabularyCannotWrite) {
  const TokenList tokenizer = without("{\\e");
  GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  std::mt19937 random(11);
  for (const char* schema :
       {R"({"anyOf":[{"type":"object"},{"type":"integer"},{"type":"array","items":true}]})",
        R"({"type":["boolean","null","string"],"maxLength":12})",
        R"({"enum":[true,{"a":1},"\\","xyz"]})", R"({"type":"array","items":{"type":"number"}})"}) {
    const auto grammar = compiled(schema);
    const Automaton automaton = automaton_of(schema);
    RandomModel model(tokenizer, automaton);
    for (int n = 0; n < 25; ++n) {
      const auto answer = model.write(*constrain(tokens, schema), random, n * 2, 2000);
      EXPECT_EQ(answer.broken, "") << schema << ": " << answer.text;
      EXPECT_TRUE(answer.ended) << schema << ": " << answer.text;
      EXPECT_TRUE(grammar->matches(answer.text)) << schema << ": " << answer.text;
    }
  }
}

TEST(GrammarMasks, AreRefusedIfTheVocabularyCanWriteNoText) {
  const auto complaint = [](const TokenList& tokenizer, GrammarSource source) {
    GrammarTokens tokens(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
    EXPECT_TRUE(Grammar::compile(source).ok());
    const auto constraint = tokens.constrain(source, "");
    return constraint.ok() ? "" : constraint.error().message;
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
  // The byte occurs in a longer token only.
  EXPECT_NE(complaint(TokenList({"{a", "}"}), {LiteralText{"{}"}}).find("can be the first"),
            std::string::npos);
  EXPECT_EQ(complaint(TokenList({"{}"}), {LiteralText{"{}"}}), "");
}

TEST(GrammarMasks, AreTheSameFromManyThreads) {
  const TokenList tokenizer = TokenList::json_pieces();
  const auto write_all = [&](GrammarTokens& tokens, std::uint32_t seed) {
    std::string all;
    for (const char* schema : schemas()) {
      const Automaton automaton = automaton_of(schema);
      RandomModel model(tokenizer, automaton);
      std::mt19937 random(seed);
      all += model.write(*constrain(tokens, schema), random, 30, 600).text + "\n";
    }
    return all;
  };
  GrammarTokens shared(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { texts[t] = write_all(shared, t / 2); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::uint32_t t = 0; t < 4; ++t) {
    GrammarTokens alone(tokenizer, tokenizer.vocab_size(), {tokenizer.eos()});
    EXPECT_EQ(texts[t], write_all(alone, t / 2));
  }
}

}  // namespace
}  // namespace protean
