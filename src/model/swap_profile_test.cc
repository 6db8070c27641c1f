#include "model/swap_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

ModelSpec three_layers() {
  ModelSpec spec;
  spec.layers = 3;
  return spec;
}

ModelIdentity model_of(int number) {
  ModelIdentity model;
  model.bytes[0] = static_cast<std::byte>(number);
  return model;
}

SwapProfileKey key_of(int model, bool halves) {
  return {model_of(model), model_of(model), Precision::kW4, halves};
}

SwapProfile some_profile(bool halves) {
  SwapProfile profile{.precision = Precision::kW4,
                      .halves = halves,
                      .metric = "l2",
                      .weights = {0.5, 0.0, 1.0},
                      .tokens = 4096,
                      .order = swap_targets(three_layers().layers, halves)};
  std::swap(profile.order[0], profile.order[2]);
  for (std::size_t i = 0; i < profile.order.size(); ++i) {
    profile.importance.push_back(1.0 - 0.125 * static_cast<double>(i));
    profile.transformation.push_back(1.0);
    profile.replacement.push_back(0.1 * static_cast<double>(i));
  }
  for (int layer = 0; layer < three_layers().layers; ++layer) {
    profile.kl_nats.push_back({0.125 * (layer + 1), 0.5});
  }
  return profile;
}

class SwapProfileTest : public testing::Test {
 protected:
  std::filesystem::path file() const { return directory_.path() / "swap-order.w4.json"; }

  std::string text() const {
    std::ifstream in(file());
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  // Loads the order after replacing one piece of the file's text.
  Result<std::vector<SwapTarget>> order_with(const std::string& before, const std::string& after) {
    EXPECT_TRUE(save_swap_profile(directory_.path(), key_of(1, false), some_profile(false)).ok());
    std::string changed = text();
    const std::size_t at = changed.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    changed.replace(at, before.size(), after);
    std::ofstream(file()) << changed;
    const auto profile = load_swap_profile(directory_.path(), key_of(1, false), three_layers());
    return profile ? Result<std::vector<SwapTarget>>(profile->order) : profile.error();
  }

  TemporaryDirectory directory_;
};

TEST_F(SwapProfileTest, AScoreThatIsNotFiniteIsNotSaved) {
  for (const double score : {std::nan(""), HUGE_VAL}) {
    SwapProfile profile = some_profile(false);
    (std::isnan(score) ? profile.replacement[1] : profile.kl_nats[1][0]) = score;
    const Status saved = save_swap_profile(directory_.path(), key_of(1, false), profile);
    ASSERT_FALSE(saved.ok());
    EXPECT_EQ(saved.error().code, ErrorCode::kCorrupt);
    EXPECT_FALSE(std::filesystem::exists(file()));
  }
}

TEST_F(SwapProfileTest, WhatIsSavedIsLoaded) {
  for (const bool halves : {false, true}) {
    const SwapProfile saved = some_profile(halves);
    ASSERT_TRUE(save_swap_profile(directory_.path(), key_of(1, halves), saved).ok());
    const auto loaded = load_swap_profile(directory_.path(), key_of(1, halves), three_layers());
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_EQ(loaded->order, saved.order);
    EXPECT_EQ(loaded->importance, saved.importance);
    EXPECT_EQ(loaded->transformation, saved.transformation);
    EXPECT_EQ(loaded->replacement, saved.replacement);
    EXPECT_EQ(loaded->weights, saved.weights);
    EXPECT_EQ(loaded->kl_nats, saved.kl_nats);
    EXPECT_EQ(loaded->metric, "l2");
    EXPECT_EQ(loaded->tokens, 4096);
  }
}

TEST_F(SwapProfileTest, IsOfOnePrecisionItsTargetsAndWhereTheWeightsCameFrom) {
  ASSERT_TRUE(save_swap_profile(directory_.path(), key_of(1, false), some_profile(false)).ok());
  SwapProfileKey other_bits = key_of(1, false);
  other_bits.precision = Precision::kW8;
  SwapProfileKey other_weights = key_of(1, false);
  other_weights.source = model_of(3);
  for (const SwapProfileKey& key : {other_bits, other_weights, key_of(1, true)}) {
    const auto profile = load_swap_profile(directory_.path(), key, three_layers());
    ASSERT_FALSE(profile.ok());
    EXPECT_EQ(profile.error().code, ErrorCode::kNotFound);
  }
  ASSERT_TRUE(save_swap_profile(directory_.path(), other_weights, some_profile(false)).ok());
  EXPECT_TRUE(load_swap_profile(directory_.path(), other_weights, three_layers()).ok());
}

TEST_F(SwapProfileTest, AnotherModelsIsRefused) {
  ASSERT_TRUE(save_swap_profile(directory_.path(), key_of(1, false), some_profile(false)).ok());
  const auto profile = load_swap_profile(directory_.path(), key_of(2, false), three_layers());
  ASSERT_FALSE(profile.ok());
  EXPECT_NE(profile.error().message.find("another model's"), std::string::npos);
  ModelSpec deeper = three_layers();
  deeper.layers = 4;
  EXPECT_FALSE(load_swap_profile(directory_.path(), key_of(1, false), deeper).ok());
}

TEST_F(SwapProfileTest, AnOrderWithoutLossesIsKept) {
  const auto order = order_with("\"format\":2", "\"format\":1");
  ASSERT_TRUE(order.ok()) << order.error().message;
  EXPECT_EQ(*order, some_profile(false).order);
  const auto profile = load_swap_profile(directory_.path(), key_of(1, false), three_layers());
  EXPECT_TRUE(profile->kl_nats.empty());
}

TEST_F(SwapProfileTest, WhatIsNoOrderOfTheLayersIsRefused) {
  EXPECT_TRUE(order_with("w4", "w4").ok());
  const std::pair<const char*, const char*> damages[] = {
      {"\"layer\":2", "\"layer\":1"},
      {"\"layer\":2", "\"layer\":7"},
      {"\"layer\":2", "\"layer\":-1"},
      {"\"layer\":2", "\"layer\":\"2\""},
      {"\"layer\":2", "\"half\":2"},
      {"\"lis\":", "\"lies\":"},
      {"\"precision\":\"w4\"", "\"precision\":\"w3\""},
      {"\"targets\":\"layers\"", "\"targets\":\"halves\""},
      {"\"format\":2", "\"format\":3"},
      {"\"kl_nats\":", "\"nats\":"},
      {"\"kl_nats\":[", "\"kl_nats\":[[0,0],"},
      {"\"kl_nats\":[[", "\"kl_nats\":[[1,"},
      {"\"kl_nats\":[[", "\"kl_nats\":[[-"},
      {"\"order\":[",
       "\"order\":["
       "1,"},
      {"{", ""},
      {"}]}", ""},
  };
  for (const auto& [before, after] : damages) {
    const auto order = order_with(before, after);
    ASSERT_FALSE(order.ok()) << before << " as " << after;
    EXPECT_EQ(order.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(order.error().message.find("swap-order.w4.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace protean
