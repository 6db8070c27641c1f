#include "replica/variant_packing.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

struct VariantPackingTest : testing::Test {
  VariantPackingTest() {
    log::set_level(log::Level::kOff);
    spec.architecture = "llama";
    spec.layers = 2;
    spec.hidden = 64;
    spec.ffn = 128;
    spec.vocab = 300;
    spec.max_context = 128;
    spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
    write_hf_checkpoint(model.path(), spec, {});
  }

  // Begins in this folder; what it says goes to `told`.
  BackgroundTask begin(const std::filesystem::path& folder) {
    auto opened_files = open_checkpoint(model.path());
    EXPECT_TRUE(opened_files.ok()) << opened_files.error().message;
    const std::shared_ptr<Checkpoint> checkpoint = *std::move(opened_files);
    const std::vector<Precision> ladder = {Precision::kBf16, Precision::kW8A8, Precision::kW4};
    auto opened =
        VariantStore::open({checkpoint, model.path()}, {},
                           {.directory = folder, .precisions = {ladder[1], ladder[2], ladder[0]}});
    EXPECT_TRUE(opened.ok());
    variants = *std::move(opened);
    told.clear();
    return prepare_variants({variants, {{1}, {0}}, ladder},
                            [this](Packing packing) { told.push_back(std::move(packing)); });
  }

  static bool go_on(std::int64_t) { return true; }

  ModelSpec spec;
  TemporaryDirectory model;
  TemporaryDirectory cache;
  std::shared_ptr<VariantStore> variants;
  std::vector<Packing> told;
};

TEST_F(VariantPackingTest, TellsHowFarItIsAndGoesOnWhereItWasStopped) {
  const auto work = begin(cache.path());
  ASSERT_EQ(told.size(), 1U);
  const std::int64_t total = told[0].total;
  EXPECT_EQ(total, 3 * 4 + 2) << "w8, w4 and bf16 of each half, embeddings at w8 and bf16";
  EXPECT_EQ(told[0].done, 0);
  ASSERT_EQ(std::ssize(told[0].missing), total);
  EXPECT_EQ(told[0].missing.front(), (SwapComponent{1, Component::kAttention, Precision::kW8}));
  EXPECT_TRUE(work([](std::int64_t) { return false; })) << "there is more to do";
  EXPECT_EQ(told.size(), 1U);
  EXPECT_TRUE(work([this](std::int64_t) { return told.size() < 4; }));
  ASSERT_EQ(told.size(), 4U);
  EXPECT_EQ(told[3].done, 3);
  EXPECT_EQ(std::ssize(told[3].missing), total - 3);
  // Another start finds what the first one has packed.
  const auto again = begin(cache.path());
  EXPECT_EQ(told[0].done, 3);
  EXPECT_FALSE(again(go_on));
  EXPECT_EQ(told.back().done, total);
  EXPECT_TRUE(told.back().missing.empty());
  EXPECT_EQ(told.back().failure, "");
  // The next one has nothing to pack: it reads the first variants ahead.
  const auto last = begin(cache.path());
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].done, total);
  int pieces = 0;
  EXPECT_FALSE(last([&](std::int64_t) { return ++pieces > 0; }));
  EXPECT_GT(pieces, 4);
  EXPECT_EQ(told.size(), 1U);
}

TEST_F(VariantPackingTest, WhatCannotBePackedIsLeftToSwaps) {
  const auto work = begin(cache.path());
  std::filesystem::remove_all(variants->model_directory());
  std::ofstream(variants->model_directory()) << "in the way";
  EXPECT_FALSE(work(go_on));
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[1].done, 0);
  EXPECT_TRUE(told[1].missing.empty()) << "nothing is out of reach any more";
  EXPECT_NE(told[1].failure.find("cannot write"), std::string::npos) << told[1].failure;
  const auto nowhere = begin(variants->model_directory() / "below");
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].failure.find("no folder"), std::string::npos) << told[0].failure;
  EXPECT_TRUE(told[0].missing.empty());
  EXPECT_FALSE(nowhere(go_on));
}

}  // namespace
}  // namespace protean
