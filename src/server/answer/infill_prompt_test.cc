#include "server/answer/infill_prompt.h"

#include <gtest/gtest.h>

#include "server/test_scenes/byte_tokenizer_for_test.h"

namespace protean {
namespace {

// The marks are bytes that the texts do not hold, so that a prompt can be read.
struct InfillPromptTest : testing::Test {
  std::string prompt(const InfillInput& input, std::int64_t max_tokens) {
    GenerationCall call;
    call.max_tokens = max_tokens;
    const auto made = infill_prompt(input, call, model);
    if (const ApiError* error = std::get_if<ApiError>(&made)) {
      return error->param + ": " + error->message;
    }
    std::string text;
    for (const TokenId token : std::get<std::vector<TokenId>>(made)) {
      text += token == tokenizer.bos() ? '^' : static_cast<char>(token);
    }
    return text;
  }

  ByteTokenizer tokenizer;
  ServedModel model{.names = {"tiny"},
                    .tokenizer = &tokenizer,
                    .max_model_len = 40,
                    .infill = {.prefix = 'P', .suffix = 'S', .middle = 'M', .file = 'F'}};
};

TEST_F(InfillPromptTest, HoldsFilesPrefixSuffixAndMiddle) {
  const std::string begin = prompt({.field = "suffix"}, 4);
  const std::string bos = begin.substr(0, begin.size() - 3);
  EXPECT_EQ(begin, bos + "PSM");
  EXPECT_EQ(prompt({.prefix = "ab", .suffix = "cd", .middle = "x", .field = "suffix"}, 4),
            bos + "PabScdMx");
  EXPECT_EQ(prompt({.prefix = "ab",
                    .suffix = "cd",
                    .middle = "",
                    .extra = {{"f", "one"}, {"g", "two"}},
                    .field = "suffix"},
                   4),
            bos + "Ff\noneFg\ntwoPabScdM");
  model.infill.file = -1;
  EXPECT_EQ(prompt({.prefix = "ab", .extra = {{"f", "one"}}, .field = "suffix"}, 4),
            bos + "onePabSM");
}

TEST_F(InfillPromptTest, LeavesOutWhatDoesNotFit) {
  const std::string as(100, 'a');
  const std::string full = prompt({.prefix = "x" + as, .suffix = as + "y", .field = "suffix"}, 8);
  EXPECT_EQ(std::ssize(full), model.max_model_len - 8);
  EXPECT_EQ(full.find_first_of("xy"), std::string::npos) << full;
  EXPECT_GT(full.find('S') - full.find('P'), full.find('M') - full.find('S'));
  // A short suffix leaves its part to the prefix.
  const std::string mostly = prompt({.prefix = as, .suffix = "y", .field = "suffix"}, 8);
  EXPECT_EQ(std::ssize(mostly), model.max_model_len - 8);
  EXPECT_NE(mostly.find("SyM"), std::string::npos);
  // The first file goes first.
  const std::string text = prompt({.prefix = "ab",
                                   .suffix = "cd",
                                   .middle = "",
                                   .extra = {{"1", std::string(20, 'z')}, {"2", "kept"}},
                                   .field = "suffix"},
                                  8);
  EXPECT_EQ(text.find('z'), std::string::npos) << text;
  EXPECT_NE(text.find("F2\nkeptPab"), std::string::npos) << text;
}

TEST_F(InfillPromptTest, ModelsWithoutTheTokensSaySo) {
  model.infill = {};
  EXPECT_EQ(prompt({.prefix = "a", .suffix = "b", .field = "input_suffix"}, 4),
            "input_suffix: input_suffix is not supported by this model: its vocabulary has no "
            "tokens for filling in the middle of a text");
}

}  // namespace
}  // namespace protean
