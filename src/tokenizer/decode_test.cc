#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/repetitions_for_test.h"
#include "base/test_data.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace protean {
namespace {

// All 256 bytes, a two-byte merge, and one special token.
Vocabulary byte_vocabulary(const std::string& pre_tokenizer) {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocabulary.tokens.push_back(to_byte_alphabet(std::string_view(&c, 1)));
  }
  vocabulary.tokens.push_back("ab");
  vocabulary.merges.push_back("a b");
  vocabulary.tokens.push_back("<|end|>");
  vocabulary.types.assign(258, Vocabulary::Type::kNormal);
  vocabulary.types.back() = Vocabulary::Type::kControl;
  vocabulary.pre_tokenizer = pre_tokenizer;
  return vocabulary;
}

std::unique_ptr<Tokenizer> bytes_tokenizer(const std::string& pre_tokenizer = "llama-bpe") {
  auto tokenizer = make_tokenizer(byte_vocabulary(pre_tokenizer));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(*tokenizer);
}

std::vector<TokenId> ids_of(std::string_view bytes) {
  std::vector<TokenId> ids;
  for (const char c : bytes) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

bool is_utf8(std::string_view text) {
  return utf8_valid_prefix(text) == text.size();
}

TEST(Utf8, KnowsTheLimitsOfTheEncoding) {
  for (const char* good :
       {"\x7F", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_utf8(good));
  }
  for (const char* bad : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\x80", "\xED\xA0\x80",
                          "\xF0\x8F\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80", "\xFF", "\xE2\x96"}) {
    EXPECT_FALSE(is_utf8(bad));
  }
  for (std::int32_t c = 0; c < 0x110000; c += 7) {
    if (c < 0xD800 || c > 0xDFFF) {
      std::string text;
      append_utf8(text, c);
      ASSERT_EQ(utf8_step(text).code_point, c);
      ASSERT_EQ(utf8_step(text).bytes, static_cast<int>(text.size()));
    }
  }
}

TEST(Decode, BrokenBytesBecomeReplacementCharacters) {
  const auto tokenizer = bytes_tokenizer();
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(decode(*tokenizer, ids_of("a\xFF"
                                      "b")),
            "a" + bad + "b");
  EXPECT_EQ(decode(*tokenizer, ids_of("\xE2\x96")), bad);                  // ends too early
  EXPECT_EQ(decode(*tokenizer, ids_of("\xE2\x96x")), bad + "x");           // one per maximal part
  EXPECT_EQ(decode(*tokenizer, ids_of("\xED\xA0\x80")), bad + bad + bad);  // a surrogate
  EXPECT_EQ(decode(*tokenizer, std::vector<TokenId>{97, 257, -5, 4000000, 98}), "ab");
}

TEST(Decode, CharactersArriveWhole) {
  const auto tokenizer = bytes_tokenizer();
  StreamDecoder decoder(*tokenizer, true);
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0xA6), "");
  EXPECT_EQ(decoder.push(0x99), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push('x'), "\xEF\xBF\xBDx");
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.finish(), "");
}

void expect_stream_equals_decode(const Tokenizer& tokenizer, unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids(random() % 40);
    for (TokenId& id : ids) {
      // Byte tokens are often among the first ones.
      const int range = random() % 2 == 0 ? 300 : tokenizer.vocab_size();
      id = static_cast<TokenId>(random() % range);
    }
    StreamDecoder decoder(tokenizer, true);
    std::string joined;
    for (const TokenId id : ids) {
      const std::string part = decoder.push(id);
      ASSERT_TRUE(is_utf8(part));
      joined += part;
    }
    const std::string rest = decoder.finish();
    ASSERT_TRUE(is_utf8(rest));
    ASSERT_EQ(joined + rest, decode(tokenizer, ids));
  }
}

TEST(Decode, StreamEqualsWholeForRandomIds) {
  expect_stream_equals_decode(*bytes_tokenizer(), 1);
  for (const char* name : {"tokenizers/llama2", "tokenizers/smollm"}) {
    PROTEAN_REQUIRE_DATA(test_data(name));
    const auto tokenizer = load_tokenizer(test_data(name));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    expect_stream_equals_decode(**tokenizer, 2);
  }
}

TEST(Decode, OnlyTheStartOfATextLosesItsSpace) {
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/llama2"));
  const auto tokenizer = load_tokenizer(test_data("tokenizers/llama2"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  StreamDecoder start(**tokenizer, true);
  StreamDecoder middle(**tokenizer, false);
  EXPECT_EQ(start.push(1), "");  // BOS has no text, so the text has not begun
  EXPECT_EQ(start.push(6324), "Hi");
  EXPECT_EQ(start.push(6324), " Hi");
  EXPECT_EQ(middle.push(6324), " Hi");
}

std::string random_bytes(std::mt19937& random) {
  std::string text(random() % 60, '\0');
  for (char& c : text) {
    c = static_cast<char>(random() % 3 == 0 ? random() % 256 : ' ' + random() % 90);
  }
  return text;
}

std::string random_utf8(std::mt19937& random) {
  std::string text;
  for (std::size_t length = random() % 40; length > 0; --length) {
    const std::int32_t limits[] = {0x80, 0x800, 0xD800, 0x110000};
    std::int32_t c = static_cast<std::int32_t>(random() % limits[random() % 4]);
    append_utf8(text, c >= 0xD800 && c < 0xE000 ? ' ' : c);
  }
  return text;
}

// Encoding keeps every byte, even of invalid text.
void expect_round_trip(const Tokenizer& tokenizer) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    const bool utf8 = round % 2 == 0;
    const std::string text = utf8 ? random_utf8(random) : random_bytes(random);
    std::string joined;
    for (const TokenId id : tokenizer.encode(text, {false, false})) {
      joined += tokenizer.bytes(id);
    }
    ASSERT_EQ(joined, text);
  }
}

TEST(Encode, EveryByteComesBack) {
  for (const char* name :
       {"gpt-2", "llama-bpe", "stablelm2", "smollm", "tekken", "gpt-4o", "deepseek-v3", "dbrx"}) {
    SCOPED_TRACE(name);
    expect_round_trip(*bytes_tokenizer(name));
  }
  for (const char* name : {"tokenizers/gpt2", "tokenizers/llama3"}) {
    PROTEAN_REQUIRE_DATA(test_data(name));
    const auto tokenizer = load_tokenizer(test_data(name));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    expect_round_trip(**tokenizer);
  }
}

TEST(Encode, SentencePieceFallsBackToBytes) {
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/llama2"));
  const auto tokenizer = load_tokenizer(test_data("tokenizers/llama2/tokenizer.model"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  std::mt19937 random(4);
  for (int round = 0; round < 500; ++round) {
    // U+2581 is the only character that SentencePiece cannot restore.
    const std::string text = random_bytes(random);
    std::string joined;
    for (const TokenId id : (*tokenizer)->encode(text, {false, false})) {
      joined += (*tokenizer)->bytes(id);
    }
    ASSERT_EQ(joined, text.empty() ? "" : " " + text);
  }
}

TEST(Encode, EncodesAMegabyteOfOneLetter) {
  std::vector<const char*> names = {"tokenizers/llama2", "tokenizers/gpt2", "tokenizers/llama3"};
  for (const char* name : names) {
    PROTEAN_REQUIRE_DATA(test_data(name));
    const auto tokenizer = load_tokenizer(test_data(name));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    for (const char letter : {'a', ' ', '!'}) {
      const int length = repetitions(letter == 'a' ? 1 << 20 : 1 << 16);
      const std::string text(static_cast<std::size_t>(length), letter);
      EXPECT_EQ(decode(**tokenizer, (*tokenizer)->encode(text, {})), text);
    }
  }
}

}  // namespace
}  // namespace protean
