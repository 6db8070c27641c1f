#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace protean {
namespace {

using Ids = std::vector<TokenId>;
using Type = Vocabulary::Type;

// <unk> <s> </s>, then pieces. Scores fall with the id unless a test changes them.
Vocabulary pieces(const std::vector<std::string>& texts) {
  Vocabulary vocabulary;
  vocabulary.kind = Vocabulary::Kind::kSentencePiece;
  vocabulary.tokens = {"<unk>", "<s>", "</s>"};
  vocabulary.types = {Type::kUnknown, Type::kControl, Type::kControl};
  for (const std::string& text : texts) {
    vocabulary.tokens.push_back(text);
    vocabulary.types.push_back(Type::kNormal);
  }
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    vocabulary.scores.push_back(-static_cast<float>(id));
  }
  vocabulary.unknown = 0;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  vocabulary.add_space_prefix = false;
  return vocabulary;
}

Vocabulary gpt2_like() {
  Vocabulary vocabulary;
  vocabulary.tokens = {"a", "b", "ab", "abab"};
  vocabulary.merges = {"a b", "ab ab"};
  vocabulary.pre_tokenizer = "gpt-2";
  return vocabulary;
}

Ids encode(Vocabulary vocabulary, std::string_view text,
           const EncodeOptions& options = kPlainText) {
  const auto tokenizer = make_tokenizer(std::move(vocabulary));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? (*tokenizer)->encode(text, options) : Ids{};
}

std::string complaint(Vocabulary vocabulary) {
  const auto tokenizer = make_tokenizer(std::move(vocabulary));
  EXPECT_FALSE(tokenizer.ok());
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

TEST(SentencePiece, TheBestScoreMergesFirstThenTheLeftmost) {
  Vocabulary vocabulary = pieces({"a", "b", "c", "ab", "bc"});  // 3..7
  EXPECT_EQ(encode(vocabulary, "abc"), (Ids{6, 5}));
  vocabulary.scores[7] = 1;  // bc before ab
  EXPECT_EQ(encode(vocabulary, "abc"), (Ids{3, 7}));
  vocabulary.scores[7] = vocabulary.scores[6];
  EXPECT_EQ(encode(vocabulary, "abc"), (Ids{6, 5}));
  EXPECT_EQ(encode(pieces({"a", "aa"}), "aaaaa"), (Ids{4, 4, 3}));
}

TEST(SentencePiece, MergesCharactersThatAreNotTokens) {
  // "b" alone is unknown, but "ab" is a piece.
  EXPECT_EQ(encode(pieces({"a", "ab"}), "abab"), (Ids{4, 4}));
  EXPECT_EQ(encode(pieces({"a", "ab"}), "abba"), (Ids{4, 0, 3}));
}

TEST(SentencePiece, UnknownRunsAreOneToken) {
  EXPECT_EQ(encode(pieces({"a"}), "axyzaxa"), (Ids{3, 0, 3, 0, 3}));
}

TEST(SentencePiece, ControlTokensAreNotMadeFromText) {
  Vocabulary vocabulary = pieces({"<", "s", ">", "<s"});
  EXPECT_EQ(encode(vocabulary, "<s>"), (Ids{6, 5}));
  EXPECT_EQ(encode(vocabulary, "<s>", {.add_special = false}), (Ids{1}));
}

TEST(SentencePiece, UnusedTokensAreSplit) {
  Vocabulary vocabulary = pieces({"a", "b", "c", "ab", "abc"});
  vocabulary.types[6] = Type::kUnused;
  EXPECT_EQ(encode(vocabulary, "ab"), (Ids{3, 4}));
  EXPECT_EQ(encode(vocabulary, "abc"), (Ids{7}));
}

TEST(SentencePiece, UserDefinedTokensAreNotSplit) {
  Vocabulary vocabulary =
      pieces({"a", "b", "ab", "ba", "\xE2\x96\x81", "\xE2\x96\x81\xE2\x96\x81"});
  vocabulary.types[8] = Type::kUserDefined;
  vocabulary.types[6] = Type::kUserDefined;
  EXPECT_EQ(encode(vocabulary, "bab"), (Ids{6, 4}));
  EXPECT_EQ(encode(vocabulary, "a  a"), (Ids{3, 8, 3}));
}

TEST(SentencePiece, AddsSpaceAndBosOnRequest) {
  Vocabulary vocabulary = pieces({"a", "\xE2\x96\x81",
                                  "\xE2\x96\x81"
                                  "a"});
  vocabulary.add_space_prefix = true;
  vocabulary.add_bos = true;
  vocabulary.add_eos = true;
  EXPECT_EQ(encode(vocabulary, "a a"), (Ids{5, 5}));
  EXPECT_EQ(encode(vocabulary, "a", {}), (Ids{1, 5, 2}));
  EXPECT_EQ(encode(vocabulary, "", {}), (Ids{1, 2}));
}

TEST(SentencePiece, RefusesInconsistentVocabularies) {
  Vocabulary vocabulary = pieces({"a"});
  vocabulary.scores.pop_back();
  EXPECT_EQ(complaint(vocabulary), "3 token scores for 4 tokens");
  vocabulary = pieces({"a"});
  vocabulary.scores[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(complaint(vocabulary), "the score of token 3 is not a number");
  vocabulary = pieces({"a"});
  vocabulary.types[3] = Type::kByte;
  EXPECT_EQ(complaint(vocabulary), "byte token 3 is 'a', not like '<0x0A>'");
  vocabulary.tokens[3] = "<0x-1>";
  EXPECT_EQ(complaint(vocabulary), "byte token 3 is '<0x-1>', not like '<0x0A>'");
  vocabulary.types[3] = static_cast<Type>(99);
  EXPECT_EQ(complaint(vocabulary), "token 3 has type 99, which does not exist");
  EXPECT_EQ(complaint(pieces({"a", "a"})), "tokens 3 and 4 are both 'a'");
  EXPECT_NE(complaint(pieces({std::string(5000, 'a')})).find("5000 bytes long"), std::string::npos);
}

TEST(ByteLevel, MergesByRank) {
  EXPECT_EQ(encode(gpt2_like(), "ababab"), (Ids{3, 2}));
  EXPECT_EQ(encode(gpt2_like(), "abxba"), (Ids{2, 1, 0}));  // no token for x
  Vocabulary vocabulary = gpt2_like();
  vocabulary.merges.clear();
  vocabulary.pre_tokenizer = "llama-bpe";  // whole pieces come before merges
  EXPECT_EQ(encode(vocabulary, "abab"), (Ids{3}));
  EXPECT_EQ(encode(vocabulary, "ababa"), (Ids{0, 1, 0, 1, 0}));
}

TEST(ByteLevel, RefusesInconsistentVocabularies) {
  Vocabulary vocabulary = gpt2_like();
  vocabulary.merges.push_back("b b");
  EXPECT_EQ(complaint(vocabulary), "merge 2 joins 'b' and 'b', but 'bb' is not in the vocabulary");
  vocabulary.merges.back() = "a b a";
  EXPECT_EQ(complaint(vocabulary), "merge 2 is 'a b a', not two tokens with a space between");
  vocabulary = gpt2_like();
  vocabulary.pre_tokenizer = "martian";
  EXPECT_EQ(complaint(vocabulary), "pre-tokenizer 'martian' is not supported");
  vocabulary = gpt2_like();
  vocabulary.eos = 4;
  EXPECT_EQ(complaint(vocabulary), "the eos token is 4, but there are 4 tokens");
  vocabulary.eos = -2;
  EXPECT_EQ(complaint(vocabulary), "the eos token is -2, but there are 4 tokens");
  vocabulary = gpt2_like();
  vocabulary.add_bos = true;
  EXPECT_EQ(complaint(vocabulary), "a bos token is to be added, but there is none");
  vocabulary = gpt2_like();
  vocabulary.types.resize(2, Type::kNormal);
  EXPECT_EQ(complaint(vocabulary), "2 token types for 4 tokens");
  EXPECT_NE(complaint(Vocabulary{}).find("a vocabulary of 0 tokens"), std::string::npos);
}

TEST(ByteLevel, AcceptsMissingIds) {
  Vocabulary vocabulary = gpt2_like();
  vocabulary.tokens.resize(8);
  const auto tokenizer = make_tokenizer(vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->vocab_size(), 8);
  EXPECT_EQ((*tokenizer)->bytes(6), "");
  EXPECT_EQ((*tokenizer)->token_text(-1), "");
  EXPECT_EQ((*tokenizer)->description(), "byte-level BPE (gpt-2), 8 tokens");
}

}  // namespace
}  // namespace protean
