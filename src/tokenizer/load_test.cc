#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

class Load : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(testing::TempDir()) / (std::string("protean_load_") + test->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  std::unique_ptr<Tokenizer> load(const std::string& name = "") {
    auto tokenizer = load_tokenizer(directory_ / name);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
  }
  std::string complaint(const std::string& name = "") {
    const auto tokenizer = load_tokenizer(directory_ / name);
    EXPECT_FALSE(tokenizer.ok());
    return tokenizer.ok() ? "" : tokenizer.error().message;
  }
  std::string at(const std::string& name) { return (directory_ / name).string(); }

  fs::path directory_;
};

TEST_F(Load, MissingFilesAreNamed) {
  EXPECT_EQ(complaint("absent"), at("absent") + ": no such file or directory");
  EXPECT_NE(complaint().find("no tokenizer.json, tokenizer.model"), std::string::npos);
}

TEST_F(Load, VocabularyAndMergesWithCompanions) {
  write("vocab.json", R"({"a":0,"b":1,"ab":2,"#":3,"##":4})");
  write("merges.txt", "#version: 0.2\n# #\r\na b\n\n");
  write("tokenizer_config.json", R"({"tokenizer_class":"Qwen2TokenizerFast","bos_token":null,
      "eos_token":{"content":"<e>"},"add_eos_token":true,
      "added_tokens_decoder":{"7":{"content":"<e>","special":true},
                              "5":{"content":"<t>","special":false}}})");
  write("added_tokens.json", R"({"<e>":7,"<x>":6})");
  for (const char* name : {"", "vocab.json", "merges.txt", "added_tokens.json"}) {
    const auto tokenizer = load(name);
    ASSERT_TRUE(tokenizer);
    EXPECT_EQ(tokenizer->encode("ab##<t><x>", {}), (Ids{2, 4, 5, 6, 7}));
    EXPECT_EQ(tokenizer->vocab_size(), 8);
    EXPECT_EQ(tokenizer->eos(), 7);
    EXPECT_EQ(tokenizer->bos(), -1);
    EXPECT_EQ(tokenizer->description(), "byte-level BPE (qwen2), 8 tokens");
  }
}

TEST_F(Load, VocabularyWithoutAPreTokenizer) {
  write("vocab.json", R"({"a":0})");
  write("merges.txt", "");
  EXPECT_NE(complaint().find("cannot tell how text is cut"), std::string::npos);
  write("tokenizer_config.json", R"({"tokenizer_class":"GPT2Tokenizer"})");
  EXPECT_TRUE(load());
  fs::remove(directory_ / "merges.txt");
  EXPECT_EQ(complaint(), at("merges.txt") + ": cannot be opened");
}

TEST_F(Load, BrokenFilesAreNamed) {
  write("tokenizer.json", "{");
  EXPECT_EQ(complaint(), at("tokenizer.json") + ": the JSON ends early, at byte 1");
  write("tokenizer_config.json", R"({"bos_token":7})");
  EXPECT_EQ(complaint(), at("tokenizer_config.json") + ": 'bos_token' of the file is not a string");
  write("tokenizer_config.json", R"({"added_tokens_decoder":{"-1":{"content":"x"}}})");
  EXPECT_EQ(complaint(),
            at("tokenizer_config.json") + ": added token '-1' has no valid id or content");
  write("tokenizer_config.json", "{}");
  write("added_tokens.json", R"({"x":4000000000})");
  EXPECT_EQ(complaint(), at("added_tokens.json") + ": added token 'x' has no valid id");
}

TEST_F(Load, ATiktokenFileThatIsNotLlama3) {
  write("tokenizer.model", "IQ== 0\nIg== 1\n");
  EXPECT_EQ(complaint(), at("tokenizer.model") +
                             ": 2 tiktoken ranks: only Llama 3's 128000 are known; use a "
                             "tokenizer.json");
  write("tokenizer.model", "IQ== 0\nIg== 7\n");
  EXPECT_EQ(complaint(), at("tokenizer.model") + ": line 2 is not a base64 token and the rank 1");
}

TEST_F(Load, AFileThatIsNotSentencePiece) {
  write("tokenizer.model", "\x0A\x05hello");
  EXPECT_EQ(complaint().find(at("tokenizer.model") + ": not a SentencePiece model"), 0u);
  // One piece "a", and trainer settings with model type 4.
  write("tokenizer.model", std::string("\x0A\x03\x0A\x01"
                                       "a\x12\x02\x18\x04",
                                       9));
  EXPECT_EQ(complaint(),
            at("tokenizer.model") + ": SentencePiece model type 'char' (only BPE and unigram are)");
}

TEST_F(Load, JsonTakesPrecedenceOverCompanions) {
  write("tokenizer.json", R"({"model":{"type":"BPE","vocab":{"a":0,"<s>":1},"merges":[]}})");
  write("tokenizer_config.json", R"({"bos_token":"<s>","add_bos_token":true})");
  EXPECT_EQ(load()->encode("a", {}), (Ids{1, 0}));
  write("tokenizer.json", R"({"model":{"type":"BPE","vocab":{"a":0,"<s>":1},"merges":[]},
      "post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]}})");
  EXPECT_EQ(load()->encode("a", {}), (Ids{0}));
}

}  // namespace
}  // namespace protean
