#include "apps/renew_files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "model/swap_profile.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

struct RenewFilesTest : testing::Test {
  void SetUp() override {
    if (!fs::exists("models/builtin/config.json")) GTEST_SKIP() << "run from the source folder";
    fs::create_directories(folder / "model");
    fs::copy("models/builtin", folder / "model");
  }
  ~RenewFilesTest() override { fs::remove_all(folder); }

  Result<OpenModel> open() const {
    ModelSetting setting;
    setting.model.model = folder / "model";
    setting.model.kv_cache_memory = "4MiB";
    setting.model.max_num_seqs = 2;
    setting.model.max_num_batched_tokens = 64;
    setting.morph.precisions = "w8,w4";
    setting.morph.variant_cache = folder / "cache";
    return open_further_model(setting, {.may_morph = true}, kGiB);
  }
  // Puts another file in the place of one of the model's, as rename(2) does.
  void replace(std::string_view name) const {
    const fs::path file = folder / "model" / name;
    fs::copy_file(file, folder / "other");
    fs::rename(folder / "other", file);
  }
  // Says that the layers of the model whose files are there now are lowered in this order.
  void keep_order(const OpenModel& of, const std::vector<SwapTarget>& order) const {
    const VariantStore& variants = *of.replica.variants;
    const std::vector<double> scores(order.size(), 0.5);
    fs::create_directories(variants.model_directory());
    const Status saved = save_swap_profile(
        variants.model_directory(),
        {variants.model(), variants.source_at(Precision::kW4), Precision::kW4, false},
        {.precision = Precision::kW4,
         .metric = "cosine",
         .order = order,
         .importance = scores,
         .transformation = scores,
         .replacement = scores,
         .kl_nats = std::vector<LayerLoss>(order.size(), LayerLoss{})});
    ASSERT_TRUE(saved.ok()) << saved.error().message;
  }

  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("renew_files_test.{}", ::getpid());
};

TEST_F(RenewFilesTest, LayersAreLoweredInTheOrderThatWasMeasuredOfTheFilesThatAreOpened) {
  auto model = open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  const std::vector<SwapTarget>& order = model->replica.morph->bounds.order;
  const std::vector<SwapTarget> front_to_back = order;
  const auto checkpoint = model->files->checkpoint;
  ASSERT_TRUE(renew_files(*model).ok());
  EXPECT_EQ(model->files->checkpoint, checkpoint) << "nothing has changed";

  replace("model.safetensors");
  const auto other = open();
  ASSERT_TRUE(other.ok()) << other.error().message;
  std::vector<SwapTarget> reversed = front_to_back;
  std::reverse(reversed.begin(), reversed.end());
  keep_order(*other, reversed);
  const Status renewed = renew_files(*model);
  ASSERT_TRUE(renewed.ok()) << renewed.error().message;
  EXPECT_NE(model->files->checkpoint, checkpoint);
  EXPECT_EQ(order, reversed);
  EXPECT_EQ(model->replica.variants->model(), other->replica.variants->model());

  replace("model.safetensors");
  ASSERT_TRUE(renew_files(*model).ok());
  EXPECT_EQ(order, front_to_back) << "of these files nothing was measured";
}

TEST_F(RenewFilesTest, FilesBesideTheWeightsAreNoticedToo) {
  auto model = open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  for (const char* name : {"config.json", "tokenizer.json"}) {
    const auto checkpoint = model->files->checkpoint;
    replace(name);
    EXPECT_TRUE(renew_files(*model).ok()) << name;
    EXPECT_NE(model->files->checkpoint, checkpoint) << name;
  }
  const auto checkpoint = model->files->checkpoint;
  EXPECT_TRUE(renew_files(*model).ok());
  EXPECT_EQ(model->files->checkpoint, checkpoint) << "they are as they were opened last";
  const fs::path other = folder / "model" / "chat_template.jinja";
  std::ofstream(other) << "{{ messages[0].content }}";
  const Status refused = renew_files(*model);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("is another model now"), std::string::npos)
      << refused.error().message;
  fs::remove(other);
  EXPECT_TRUE(renew_files(*model).ok());
}

TEST_F(RenewFilesTest, FilesThatAreGoneAreReadAsTheyWere) {
  auto model = open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  const auto checkpoint = model->files->checkpoint;
  fs::remove_all(folder / "model");
  EXPECT_TRUE(renew_files(*model).ok());
  EXPECT_EQ(model->files->checkpoint, checkpoint);
}

TEST_F(RenewFilesTest, OtherDefaultsForGenerationAreRefused) {
  auto model = open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  const auto checkpoint = model->files->checkpoint;
  replace("model.safetensors");
  const fs::path defaults = folder / "model" / "generation_config.json";
  fs::rename(defaults, folder / "defaults");
  std::ofstream(defaults) << R"({"temperature": 0.123})";
  const Status refused = renew_files(*model);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("has other defaults for generation now"),
            std::string::npos)
      << refused.error().message;
  EXPECT_EQ(model->files->checkpoint, checkpoint);
  fs::rename(folder / "defaults", defaults);
  EXPECT_TRUE(renew_files(*model).ok());
  EXPECT_NE(model->files->checkpoint, checkpoint);
}

}  // namespace
}  // namespace protean
