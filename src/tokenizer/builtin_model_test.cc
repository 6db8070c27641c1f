// Tests the tokenizer of models/builtin, which tools/builtin_model trained.

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/repetitions_for_test.h"
#include "base/test_data.h"
#include "tokenizer/tokenizer.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

class BuiltinTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = "models/builtin";
    if (!fs::exists(model / "tokenizer.json")) {
      GTEST_SKIP() << "needs models/builtin; run from the source folder";
    }
    auto tokenizer = load_tokenizer(model);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    tokenizer_ = std::move(*tokenizer);
  }

  std::string there_and_back(std::string_view text) const {
    std::string back;
    for (const TokenId id : tokenizer_->encode(text, kPlainText)) {
      back += tokenizer_->bytes(id);
    }
    return back;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(BuiltinTokenizer, EncodesAsItsTrainerDoes) {
  EXPECT_EQ(tokenizer_->vocab_size(), 4096);
  EXPECT_EQ(tokenizer_->bos(), 0);
  EXPECT_EQ(tokenizer_->eos(), 1);
  EXPECT_EQ(tokenizer_->find_special("<|assistant|>"), 4);
  EXPECT_EQ(tokenizer_->encode("Once upon a time, there was a little girl named Lily.", {}),
            (Ids{0, 1940, 606, 264, 556, 50, 471, 313, 264, 521, 858, 2632, 2159, 52}));
  EXPECT_EQ(tokenizer_->encode("\"Holmes,\" said I, \"it's 1887!\"\n\n  Na\xC3\xAFve caf\xC3\xA9 "
                               "\xE2\x80\x94 \xE6\x97\xA5\xE6\x9C\xAC 12345 \xF0\x9F\x98\x80\t\n",
                               kPlainText),
            (Ids{40,  78,  1639, 406,  380, 301,  50,  379, 278, 370, 3955, 62,  61,  1128, 38,
                 577, 103, 201,  181,  318, 2052, 108, 201, 175, 38,  773,  38,  236, 157,  171,
                 236, 162, 178,  1986, 56,  57,   58,  59,  38,  246, 165,  158, 134, 15,   16}));
}

TEST_F(BuiltinTokenizer, GivesBackEveryText) {
  const fs::path texts = test_data("text");
  PROTEAN_REQUIRE_DATA(texts);
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(texts)) {
    if (!entry.is_regular_file()) {
      continue;
    }
    const std::string text =
        read_test_data(entry.path()).substr(0, static_cast<std::size_t>(repetitions(64 << 10)));
    EXPECT_TRUE(there_and_back(text) == text) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 150);
}

TEST_F(BuiltinTokenizer, GivesBackArbitraryBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    EXPECT_EQ(there_and_back(bytes), bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    EXPECT_EQ(there_and_back(one), one) << byte;
  }
  const std::string names = "<|bos|><|user|>a<|end|>";  // plain text by default
  EXPECT_EQ(there_and_back(names), names);
}

}  // namespace
}  // namespace protean
