#include "replica/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/gguf.h"
#include "tests/checkpoints/gguf_writer.h"

namespace protean {
namespace {

using Ids = std::vector<TokenId>;

// A file's metadata in memory.
class Metadata {
 public:
  explicit Metadata(const GgufWriter& writer) : bytes_(writer.file()) {}
  GgufFile file() const { return *GgufFile::parse(std::as_bytes(std::span(bytes_)), "m.gguf"); }

 private:
  std::string bytes_;
};

// The Unigram vocabulary of T5's files, with T5's numbers of special tokens.
GgufWriter t5_metadata() {
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", std::string_view("t5"));
  writer.add("tokenizer.ggml.pre", std::string_view("default"));
  writer.add("tokenizer.ggml.tokens",
             std::vector<std::string>{"<pad>", "</s>", "<unk>", "▁", "a", "b", "▁a", "ab", "▁ab"});
  writer.add("tokenizer.ggml.scores",
             std::vector<float>{0.0F, 0.0F, 0.0F, -3.0F, -2.0F, -2.0F, -2.5F, -2.2F, -6.0F});
  writer.add("tokenizer.ggml.token_type", std::vector<std::int32_t>{3, 3, 2, 1, 1, 1, 1, 1, 1});
  return writer;
}

std::unique_ptr<Tokenizer> tokenizer_of(const GgufWriter& writer) {
  Result<Vocabulary> vocabulary = gguf_vocabulary(Metadata(writer).file());
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.error().message;
  Result<std::unique_ptr<Tokenizer>> tokenizer = make_tokenizer(*std::move(vocabulary));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

TEST(GgufVocabulary, T5IsUnigramWithItsOwnSpecialTokens) {
  const auto tokenizer = tokenizer_of(t5_metadata());
  EXPECT_EQ(tokenizer->eos(), 1);
  EXPECT_EQ(tokenizer->bos(), -1);
  // "▁a" and "b" score -4.5, "▁" and "ab" -5.2, "▁ab" -6.
  EXPECT_EQ(tokenizer->encode("ab", {}), (Ids{6, 5, 1}));
  EXPECT_EQ(tokenizer->encode("az", kPlainText), (Ids{6, 2}));
  EXPECT_EQ(tokenizer->encode("a  b", kPlainText), (Ids{6, 3, 3, 5}));
}

TEST(GgufVocabulary, T5ObeysTheKeysOfItsFile) {
  GgufWriter writer = t5_metadata();
  writer.add("tokenizer.ggml.remove_extra_whitespaces", true);
  writer.add("tokenizer.ggml.add_eos_token", false);
  writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{0});
  EXPECT_EQ(tokenizer_of(writer)->encode(" a  b ", {}), (Ids{6, 3, 5}));
  EXPECT_EQ(tokenizer_of(writer)->eos(), 0);
  writer.add("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(tokenizer_of(writer)->encode("ab", {}), (Ids{7}));
}

// Bytes of a charsmap are signed or not in files; both are the same bytes.
TEST(GgufVocabulary, ReadsTheCharsmapOfSignedBytes) {
  GgufWriter writer = t5_metadata();
  writer.add("tokenizer.ggml.precompiled_charsmap", std::vector<std::int32_t>{4, -1, 255, 0});
  const auto vocabulary = gguf_vocabulary(Metadata(writer).file());
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_EQ(vocabulary->charsmap, std::string("\x04\xFF\xFF\0", 4));
}

TEST(GgufVocabulary, OtherKindsAreRefused) {
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", std::string_view("bert"));
  EXPECT_EQ(gguf_vocabulary(Metadata(writer).file()).error().message,
            "m.gguf: tokenizer.ggml.model is 'bert', not llama, gpt2 or t5: use a file with one of "
            "these tokenizers");
}

Result<InfillTokens> infill_of(const GgufWriter& writer) {
  return gguf_infill_tokens(Metadata(writer).file(), *tokenizer_of(t5_metadata()));
}

TEST(GgufVocabulary, InfillTokensAreThoseThatTheFileNames) {
  GgufWriter writer;
  writer.add("tokenizer.ggml.fim_pre_token_id", std::uint32_t{3});
  writer.add("tokenizer.ggml.fim_suf_token_id", std::uint32_t{4});
  EXPECT_FALSE(infill_of(writer)->complete());
  writer.add("tokenizer.ggml.fim_mid_token_id", std::uint32_t{5});
  writer.add("tokenizer.ggml.fim_rep_token_id", std::uint32_t{6});
  writer.add("tokenizer.ggml.fim_sep_token_id", std::uint32_t{7});
  writer.add("tokenizer.ggml.fim_pad_token_id", std::uint32_t{0});
  const auto found = infill_of(writer);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->prefix, 3);
  EXPECT_EQ(found->suffix, 4);
  EXPECT_EQ(found->middle, 5);
  EXPECT_EQ(found->repository, 6);
  EXPECT_EQ(found->file, 7);
  EXPECT_EQ(found->pad, 0);
}

TEST(GgufVocabulary, InfillTokensOfOlderFilesHaveOtherNames) {
  GgufWriter writer;
  writer.add("tokenizer.ggml.prefix_token_id", std::uint32_t{5});
  writer.add("tokenizer.ggml.suffix_token_id", std::uint32_t{6});
  writer.add("tokenizer.ggml.middle_token_id", std::uint32_t{7});
  writer.add("tokenizer.ggml.fim_mid_token_id", std::uint32_t{3});
  const auto found = infill_of(writer);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->prefix, 5);
  EXPECT_EQ(found->suffix, 6);
  EXPECT_EQ(found->middle, 3);
}

TEST(GgufVocabulary, AnInfillTokenOutsideTheVocabularyIsDamage) {
  GgufWriter writer;
  writer.add("tokenizer.ggml.fim_mid_token_id", std::uint32_t{9});
  EXPECT_EQ(infill_of(writer).error().message,
            "m.gguf: tokenizer.ggml.fim_mid_token_id is 9, outside the vocabulary of 9 tokens: the "
            "file is damaged");
}

}  // namespace
}  // namespace protean
