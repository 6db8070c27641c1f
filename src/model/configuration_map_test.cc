#include <gtest/gtest.h>

#include <filesystem>

#include "model/profile_database.h"

namespace protean {
namespace {

class ConfigurationMap : public ::testing::Test {
 protected:
  ConfigurationMap() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~ConfigurationMap() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<ProfileDatabase> open() {
    auto database = ProfileDatabase::open(folder_);
    EXPECT_TRUE(database.ok());
    return *std::move(database);
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / "protean-configuration-map";
};

std::vector<MappedConfiguration> two_rows() {
  return {{.configuration = {.tensor = 4,
                             .stages = 2,
                             .weights = Precision::kW4,
                             .method = WeightMethod::kGptq,
                             .kv = KvPrecision::kInt8},
           .latency = {.ttft_us = 1500.5, .tpot_us = 20.25},
           .block_bytes = 1LL << 33,
           .total_bytes = 1LL << 36,
           .rests_on = "Vidur's profiles"},
          {.configuration = {.pruning = {.kind = PruningKind::kStructured, .percent = 25}},
           .latency = {.ttft_us = 1, .tpot_us = 2}}};
}

TEST_F(ConfigurationMap, IsReadAsItWasSaved) {
  const ConfigurationMapKey key{.model = "llama-2-70b", .devices = "8xA6000", .load = {.batch = 3}};
  ASSERT_TRUE(open()->save(key, two_rows()).ok());
  const auto read = open()->configurations(key);
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const MappedConfiguration& row = (*read)[i];
    const MappedConfiguration wrote = two_rows()[i];
    EXPECT_EQ(row.configuration, wrote.configuration);
    EXPECT_EQ(row.latency.ttft_us, wrote.latency.ttft_us);
    EXPECT_EQ(row.latency.tpot_us, wrote.latency.tpot_us);
    EXPECT_EQ(row.block_bytes, wrote.block_bytes);
    EXPECT_EQ(row.total_bytes, wrote.total_bytes);
    EXPECT_EQ(row.rests_on, wrote.rests_on);
  }
}

TEST_F(ConfigurationMap, AnotherLoadOrDevicesHaveTheirOwn) {
  const ConfigurationMapKey key{.model = "llama-2-70b", .devices = "8xA6000"};
  const auto database = open();
  ASSERT_TRUE(database->save(key, two_rows()).ok());
  ConfigurationMapKey other = key;
  other.load.batch = 8;
  EXPECT_TRUE(database->configurations(other)->empty());
  other = key;
  other.devices = "4xA6000";
  EXPECT_TRUE(database->configurations(other)->empty());
}

TEST_F(ConfigurationMap, TheOneOfAnotherVersionIsNotReadAndIsReplaced) {
  const ConfigurationMapKey former{.model = "m", .devices = "1 x CPU", .version = "1"};
  ConfigurationMapKey present = former;
  present.version = "2";
  const auto database = open();
  ASSERT_TRUE(database->save(former, two_rows()).ok());
  EXPECT_TRUE(database->configurations(present)->empty());
  EXPECT_TRUE(database->configuration_maps("m", "2")->empty());
  ASSERT_TRUE(database->save(present, two_rows()).ok());
  EXPECT_EQ(database->configurations(present)->size(), 2U);
  EXPECT_TRUE(database->configurations(former)->empty());
}

TEST_F(ConfigurationMap, AModelHasOneForEachLoadAndDevices) {
  const auto database = open();
  const std::vector<ConfigurationMapKey> keys = {
      {.model = "m", .devices = "1 x CPU", .load = {.batch = 1}},
      {.model = "m", .devices = "2 x CPU", .load = {.batch = 1}},
      {.model = "m", .devices = "1 x CPU", .load = {.batch = 8, .prompt_tokens = 20}}};
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    ASSERT_TRUE(database->save(*key, two_rows()).ok());
  }
  ASSERT_TRUE(database->save({.model = "other"}, two_rows()).ok());
  const auto found = database->configuration_maps("m", "");
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ((*found)[i].devices, keys[i].devices) << i;
    EXPECT_EQ((*found)[i].load.batch, keys[i].load.batch) << i;
    EXPECT_EQ((*found)[i].load.prompt_tokens, keys[i].load.prompt_tokens) << i;
  }
  EXPECT_TRUE(database->configuration_maps("none", "")->empty());
}

TEST_F(ConfigurationMap, TheQualityOfAModelDependsOnHowItIsStoredAlone) {
  const auto database = open();
  Configuration stored = two_rows()[0].configuration;
  ASSERT_TRUE(database->save_quality("m", stored, 1.5).ok());
  stored.stages = 1;
  ASSERT_TRUE(database->save_quality("m", stored, 1.04).ok());
  ASSERT_TRUE(database->save_quality("m", two_rows()[1].configuration, 1.2).ok());
  ASSERT_TRUE(database->save_quality("other", stored, 7).ok());
  const auto read = open()->qualities("m");
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->size(), 2U);
  for (const MeasuredQuality& one : *read) {
    Configuration expected = stored;
    expected.tensor = 1;
    const bool pruned = one.configuration.pruning.kind == PruningKind::kStructured;
    EXPECT_EQ(one.configuration, pruned ? two_rows()[1].configuration : expected);
    EXPECT_EQ(one.perplexity_ratio, pruned ? 1.2 : 1.04);
  }
  EXPECT_TRUE(open()->qualities("none")->empty());
}

}  // namespace
}  // namespace protean
