#include "tokenizer/infill_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace protean {
namespace {

InfillTokens infill_of(const std::vector<std::string>& names) {
  Vocabulary vocabulary;
  vocabulary.pre_tokenizer = "gpt-2";
  vocabulary.tokens = {"a"};
  vocabulary.types = {Vocabulary::Type::kNormal};
  for (const std::string& name : names) {
    vocabulary.tokens.push_back(name);
    vocabulary.types.push_back(Vocabulary::Type::kControl);
  }
  const auto tokenizer = make_tokenizer(std::move(vocabulary));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? find_infill_tokens(**tokenizer) : InfillTokens{};
}

TEST(InfillTokens, AreFoundByTheNamesOfFamilies) {
  const InfillTokens qwen = infill_of(
      {"<|file_sep|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"});
  EXPECT_TRUE(qwen.complete());
  EXPECT_EQ(qwen.file, 1);
  EXPECT_EQ(qwen.prefix, 2);
  EXPECT_EQ(qwen.middle, 3);
  EXPECT_EQ(qwen.suffix, 4);
  EXPECT_EQ(qwen.pad, 5);
  EXPECT_EQ(qwen.repository, -1);
  const InfillTokens deepseek = infill_of({"<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"});
  EXPECT_EQ(deepseek.suffix, 1);
  EXPECT_EQ(deepseek.prefix, 2);
  EXPECT_EQ(deepseek.middle, 3);
  EXPECT_FALSE(infill_of({"<fim_prefix>", "<fim_middle>"}).complete());
}

}  // namespace
}  // namespace protean
