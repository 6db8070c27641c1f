#include "tokenizer/vocabulary_files.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <unistd.h>

#include <boost/json.hpp>
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

// Returns a byte-level vocabulary whose special tokens are the first ids or the last ones.
Vocabulary byte_level_vocabulary(const char* pre, bool specials_first) {
  Vocabulary vocabulary;
  vocabulary.tokens = {"a", "b", "ab", "abab", "\xC4\xA0", "1"};
  vocabulary.types.assign(vocabulary.tokens.size(), Type::kNormal);
  const std::size_t at = specials_first ? 0 : vocabulary.tokens.size();
  vocabulary.tokens.insert(vocabulary.tokens.begin() + at, {"<|end|>", "<|pad|>", "<tool>"});
  vocabulary.types.insert(vocabulary.types.begin() + at,
                          {Type::kControl, Type::kControl, Type::kUserDefined});
  vocabulary.merges = {"a b", "ab ab"};
  vocabulary.pre_tokenizer = pre;
  vocabulary.bos = static_cast<TokenId>(at);
  vocabulary.eos = static_cast<TokenId>(at);
  vocabulary.add_bos = true;
  return vocabulary;
}

TEST(VocabularyFiles, ByteLevelBpeReadsBackTheSame) {
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2"}) {
    for (const bool specials_first : {false, true}) {
      expect_same(byte_level_vocabulary(pre, specials_first),
                  {"", "abab ab1", "a<|end|>b<tool>", "<|pad|>", "ab<|pad|>"});
    }
  }
}

// The Hugging Face library ignores the id of an added token that the model lacks, and numbers such
// tokens from the model's size on.
TEST(VocabularyFiles, ModelHasTheAddedTokens) {
  for (const bool specials_first : {false, true}) {
    const Vocabulary vocabulary = byte_level_vocabulary("gpt-2", specials_first);
    const auto files = vocabulary_files(vocabulary, "");
    ASSERT_TRUE(files.ok());
    const boost::json::value root = boost::json::parse(files->at("tokenizer.json"));
    const boost::json::object& ids = root.at("model").at("vocab").as_object();
    EXPECT_EQ(ids.size(), vocabulary.tokens.size());
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      const boost::json::value* written = ids.if_contains(vocabulary.tokens[id]);
      ASSERT_TRUE(written) << vocabulary.tokens[id];
      EXPECT_EQ(written->to_number<std::size_t>(), id) << vocabulary.tokens[id];
    }
    const boost::json::array& added = root.at("added_tokens").as_array();
    EXPECT_EQ(added.size(), 3u);
    for (const boost::json::value& token : added) {
      EXPECT_EQ(token.at("id"), ids.at(token.at("content").as_string())) << token;
    }
  }
}

}  // namespace
}  // namespace protean
