#include "cost/ffn_pages.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace protean {
namespace {

// AMOEBA, table 2: pages of 2 MiB at TP 1 and TP 4.
TEST(FfnPages, AreThoseOfThePapersTable) {
  struct Row {
    const char* model;
    const char* tensor;
    double tp1, tp4;
  };
  for (const Row& row :
       {Row{"gpt-oss-120b", "down", 1012.5, 253.125}, Row{"gpt-oss-120b", "gate_up", 2025, 506.25},
        Row{"gpt-oss-20b", "down", 253.125, 63.281}, Row{"gpt-oss-20b", "gate_up", 506.25, 126.563},
        Row{"llama-3.1-70b", "gate", 224, 56}, Row{"llama-3.1-70b", "up", 224, 56},
        Row{"llama-3.1-70b", "down", 224, 56}, Row{"qwen2.5-32b", "down", 135, 33.75}}) {
    const auto model = find_known_model(row.model, false);
    ASSERT_TRUE(model.ok());
    bool found = false;
    for (const FfnTensor& tensor : ffn_tensors(*model, 2 * kMiB)) {
      if (tensor.name == row.tensor) {
        found = true;
        EXPECT_NEAR(tensor.pages_at(1), row.tp1, 0.001) << row.model;
        EXPECT_NEAR(tensor.pages_at(4), row.tp4, 0.001) << row.model;
        EXPECT_GE(tensor.padding_at(4), 0);
        EXPECT_LT(tensor.padding_at(4), 0.14);
      }
    }
    EXPECT_TRUE(found) << row.model << ' ' << row.tensor;
  }
}

TEST(FfnPages, PaddingIsWhatWholePagesOfEachShareAdd) {
  EXPECT_DOUBLE_EQ((FfnTensor{"down", 135}.padding_at(4)), 4.0 * 34 / 135 - 1);
  EXPECT_DOUBLE_EQ((FfnTensor{"down", 224}.padding_at(4)), 0);
}

TEST(KnownModels, ThoseWithExpertsAreNotDense) {
  EXPECT_TRUE(find_known_model("gpt-oss-20b", false).ok());
  EXPECT_EQ(find_known_model("Llama-2-70B", true)->name, "llama-2-70b");
  const auto refused = find_known_model("gpt-oss-20b", true);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("must be one of llama-3.2-1b, "), std::string::npos);
  for (const KnownModel& model : known_models()) {
    EXPECT_TRUE(validate(model.spec).ok()) << model.name;
  }
}

}  // namespace
}  // namespace protean
