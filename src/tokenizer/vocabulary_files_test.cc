#include "tokenizer/vocabulary_files.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

namespace protean {
namespace {

namespace fs = std::filesystem;
using Type = Vocabulary::Type;

// A directory with the vocabulary's files.
class WrittenVocabulary {
 public:
  explicit WrittenVocabulary(const Vocabulary& vocabulary)
      : path_(fs::temp_directory_path() / ("protean-vocabulary-" + std::to_string(::getpid()))) {
    fs::create_directory(path_);
    const auto files = vocabulary_files(vocabulary, "{{ messages }}");
    EXPECT_TRUE(files.ok());
    for (const auto& [name, text] : *files) {
      std::ofstream(path_ / name, std::ios::binary) << text;
    }
  }
  ~WrittenVocabulary() { fs::remove_all(path_); }

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void expect_same(const Vocabulary& vocabulary, const std::vector<std::string>& texts) {
  const auto before = make_tokenizer(vocabulary);
  const WrittenVocabulary written(vocabulary);
  const auto after = load_tokenizer(written.path());
  ASSERT_TRUE(before.ok());
  ASSERT_TRUE(after.ok()) << after.error().message;
  EXPECT_EQ((*after)->vocab_size(), (*before)->vocab_size());
  EXPECT_EQ((*after)->bos(), (*before)->bos());
  EXPECT_EQ((*after)->eos(), (*before)->eos());
  for (const std::string& text : texts) {
    EXPECT_EQ((*after)->encode(text, {}), (*before)->encode(text, {})) << text;
    EXPECT_EQ((*after)->encode(text, kPlainText), (*before)->encode(text, kPlainText)) << text;
  }
  for (TokenId id = 0; id < (*before)->vocab_size(); ++id) {
    EXPECT_EQ((*after)->bytes(id), (*before)->bytes(id)) << id;
  }
}

// Returns a SentencePiece vocabulary, with a token for each byte if `bytes`.
Vocabulary sentencepiece_vocabulary(bool bytes) {
  Vocabulary vocabulary;
  vocabulary.kind = Vocabulary::Kind::kSentencePiece;
  vocabulary.tokens = {"<unk>", "<s>", "</s>"};
  vocabulary.types = {Type::kUnknown, Type::kControl, Type::kControl};
  for (int byte = 0; bytes && byte < 256; ++byte) {
    vocabulary.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    vocabulary.types.push_back(Type::kByte);
  }
  for (const char* piece : {"\xE2\x96\x81", "a", "b", "ab",
                            "\xE2\x96\x81"
                            "ab"}) {
    vocabulary.tokens.emplace_back(piece);
    vocabulary.types.push_back(Type::kNormal);
  }
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    vocabulary.scores.push_back(-0.5F * static_cast<float>(id));
  }
  vocabulary.unknown = 0;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  vocabulary.add_bos = true;
  return vocabulary;
}

// Expects that the SentencePiece library loads the vocabulary's tokenizer.model and encodes a text
// as we do, also a character that is not a token.
void expect_library_agrees(const Vocabulary& vocabulary) {
  const auto tokenizer = make_tokenizer(vocabulary);
  const auto files = vocabulary_files(vocabulary, "");
  ASSERT_TRUE(tokenizer.ok());
  ASSERT_TRUE(files.ok());
  sentencepiece::SentencePieceProcessor library;
  const auto loaded = library.LoadFromSerializedProto(files->at("tokenizer.model"));
  ASSERT_TRUE(loaded.ok()) << loaded.ToString();
  EXPECT_EQ(library.GetPieceSize(), (*tokenizer)->vocab_size());
  const std::string text = "ab a\xC3\xA9";
  const std::vector<int> ids = library.EncodeAsIds(text);
  EXPECT_EQ((*tokenizer)->encode(text, kPlainText), std::vector<TokenId>(ids.begin(), ids.end()));
}

TEST(VocabularyFiles, SentencePieceLibraryFallsBackToBytes) {
  const Vocabulary vocabulary = sentencepiece_vocabulary(true);
  expect_library_agrees(vocabulary);
  const auto tokenizer = make_tokenizer(vocabulary);
  ASSERT_TRUE(tokenizer.ok());
  const std::vector<TokenId> ids = (*tokenizer)->encode("\xC3\xA9", kPlainText);
  EXPECT_EQ(std::vector<TokenId>(ids.end() - 2, ids.end()),
            (std::vector<TokenId>{3 + 0xC3, 3 + 0xA9}));
}

TEST(VocabularyFiles, SentencePieceLibraryReadsVocabularyWithoutBytes) {
  expect_library_agrees(sentencepiece_vocabulary(false));
}

TEST(VocabularyFiles, SentencePieceReadsBackTheSame) {
  Vocabulary vocabulary = sentencepiece_vocabulary(true);
  for (const bool space : {true, false}) {
    vocabulary.add_space_prefix = space;
    expect_same(vocabulary, {"", "ab ab", "  a<s>b", "\xC3\xA9\n"});
  }
}

TEST(VocabularyFiles, ByteLevelBpeReadsBackTheSame) {
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2"}) {
    Vocabulary vocabulary;
    vocabulary.tokens = {"a", "b", "ab", "abab", "\xC4\xA0", "1", "<|end|>", "<tool>"};
    vocabulary.types.assign(vocabulary.tokens.size(), Type::kNormal);
    vocabulary.types[6] = Type::kControl;
    vocabulary.types[7] = Type::kUserDefined;
    vocabulary.merges = {"a b", "ab ab"};
    vocabulary.pre_tokenizer = pre;
    vocabulary.bos = 6;
    vocabulary.eos = 6;
    vocabulary.add_bos = true;
    expect_same(vocabulary, {"", "abab ab1", "a<|end|>b<tool>"});
  }
}

}  // namespace
}  // namespace protean
