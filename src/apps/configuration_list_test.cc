#include "apps/configuration_list.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json/array.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/version.h"
#include "model/profile_database.h"

namespace protean {
namespace {

struct ConfigurationListTest : testing::Test {
  ConfigurationListTest() {
    spec.attention = {.heads = 8, .kv_heads = 4, .head_dim = 64};
    std::filesystem::create_directories(folder);
  }
  ~ConfigurationListTest() override { std::filesystem::remove_all(folder); }

  void keep(int batch, const std::vector<MappedConfiguration>& rows,
            const std::string& version = kVersion) const {
    const auto database = ProfileDatabase::open(folder);
    ASSERT_TRUE(database.ok());
    const ConfigurationMapKey key{
        .model = "m", .devices = "2 x CPU", .load = {.batch = batch}, .version = version};
    ASSERT_TRUE((*database)->save(key, rows).ok());
    ASSERT_TRUE((*database)->save_quality("m", {.weights = Precision::kW4}, 1.02).ok());
  }
  boost::json::object list(const LoadFilter& wanted = {}) const {
    const auto found = kept_configurations({model, spec}, wanted, folder);
    EXPECT_TRUE(found.ok());
    return *found;
  }

  const std::string model = "m";
  ModelSpec spec{.architecture = "llama", .layers = 5, .hidden = 512, .ffn = 1024, .vocab = 300};
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                       fmt::format("protean-configurations.{}", ::getpid());
};

TEST_F(ConfigurationListTest, ShowsEachEstimateWithItsMemoryQualityAndSource) {
  EXPECT_TRUE(list().at("maps").as_array().empty());
  keep(3, {{.configuration = {.tensor = 2, .stages = 2, .weights = Precision::kW4},
            .latency = {.ttft_us = 1500, .tpot_us = 20},
            .total_bytes = 1000,
            .rests_on = "a fingerprint"},
           {.configuration = {}, .latency = {}, .rests_on = "another"}});
  const boost::json::object found = list();
  const boost::json::object& map = found.at("maps").as_array().at(0).as_object();
  EXPECT_EQ(map.at("devices"), "2 x CPU");
  EXPECT_EQ(map.at("batch"), 3);
  ASSERT_EQ(map.at("configurations").as_array().size(), 2U);
  const boost::json::object& row = map.at("configurations").as_array().at(0).as_object();
  EXPECT_EQ(row.at("name"), "TP 2 x PP 2, w4, KV bf16");
  EXPECT_EQ(row.at("ttft_ms"), 1.5);
  EXPECT_EQ(row.at("memory_bytes"), 1000);
  const Configuration four{.tensor = 2, .stages = 2, .weights = Precision::kW4};
  EXPECT_EQ(row.at("device_memory_bytes"),
            memory_of(spec, four, {.batch = 3}).device_bytes(3, true));
  EXPECT_EQ(row.at("perplexity_ratio"), 1.02);
  EXPECT_EQ(row.at("rests_on"), "a fingerprint");
  EXPECT_TRUE(map.at("configurations").as_array().at(1).at("perplexity_ratio").is_null());
}

TEST_F(ConfigurationListTest, LoadsAreChosenAndBoundedAndWhatIsNotLegalIsLeftOut) {
  const int count = kMostShownMaps + 2;
  for (int batch = 1; batch <= count; ++batch) {
    keep(batch, {{.configuration = {.tensor = 3}}, {.configuration = {.stages = 6}}});
  }
  const boost::json::object all = list();
  EXPECT_EQ(all.at("maps").as_array().size(), std::size_t{kMostShownMaps});
  EXPECT_EQ(all.at("left_out"), 2);
  EXPECT_TRUE(all.at("maps").as_array().at(0).at("configurations").as_array().empty());
  keep(count + 1, {{.configuration = {}}}, "another version");
  EXPECT_TRUE(list({.batch = count + 1}).at("maps").as_array().empty());
  const boost::json::object last = list({.batch = count});
  ASSERT_EQ(last.at("maps").as_array().size(), 1U);
  EXPECT_EQ(last.at("maps").as_array().at(0).at("batch"), count);
  EXPECT_TRUE(list({.batch = 1, .prompt_tokens = 1}).at("maps").as_array().empty());
}

}  // namespace
}  // namespace protean
