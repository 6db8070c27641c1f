#include "apps/cluster.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace protean {
namespace {

Result<Cluster> cluster_of_text(const std::string& keys) {
  const std::string path = testing::TempDir() + fmt::format("cluster_test.{}.toml", ::getpid());
  std::ofstream(path) << "profile = \"A100\"\n" << keys;
  Result<Cluster> read = read_cluster(path);
  std::filesystem::remove(path);
  return read;
}

TEST(Cluster, AFileChangesWhatTheProfileSays) {
  const auto cluster = cluster_of_text("devices = 1024\nmemory = \"1024T\"\nlink_us = 2.5");
  ASSERT_TRUE(cluster.ok()) << cluster.error().message;
  EXPECT_EQ(cluster->name, "1024xA100");
  EXPECT_EQ(cluster->link.us, 2.5);
  EXPECT_EQ(machine_of(*cluster).free_memory_bytes, 1024 * cluster->memory_bytes);
}

TEST(Cluster, NumbersAreFiniteAndMemoryOfAllDevicesCanBeCounted) {
  for (const char* wrong :
       {"memory = \"8000000T\"", "link_us = inf", "link_us = nan", "link_bytes_per_us = inf",
        "swap_bytes_per_us = inf", "devices = nan", "link_devices = nan", "slowdown = [inf]"}) {
    const auto cluster = cluster_of_text(wrong);
    ASSERT_FALSE(cluster.ok()) << wrong;
    const std::string key(wrong, std::string(wrong).find(' '));
    EXPECT_NE(cluster.error().message.find(key), std::string::npos) << cluster.error().message;
  }
}

}  // namespace
}  // namespace protean
