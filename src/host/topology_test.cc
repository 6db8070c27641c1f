#include "host/topology.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace protean {
namespace {

namespace fs = std::filesystem;

// A temporary tree like /sys.
class FakeSys {
 public:
  FakeSys() { fs::create_directories(root_); }
  ~FakeSys() { fs::remove_all(root_); }
  FakeSys(const FakeSys&) = delete;
  FakeSys& operator=(const FakeSys&) = delete;

  void write(const fs::path& path, std::string_view text) const {
    const fs::path file = root_ / "devices/system" / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  void siblings(int cpu, std::string_view list) const {
    write(fmt::format("cpu/cpu{}/topology/thread_siblings_list", cpu), list);
  }
  const fs::path& root() const { return root_; }

 private:
  fs::path root_ =
      fs::temp_directory_path() / fmt::format("protean-topology-{}", std::random_device{}());
};

std::vector<std::tuple<int, int, int>> places(const Topology& topology) {
  std::vector<std::tuple<int, int, int>> places;
  for (const CpuPlace& place : topology.cpus) {
    places.emplace_back(place.cpu, place.core, place.node);
  }
  return places;
}

TEST(Topology, CountsFilesInThePageCacheAsFree) {
  const FakeSys sys;
  sys.write("node/node0/meminfo",
            "Node 0 MemTotal:       1000 kB\nNode 0 MemFree:         100 kB\n"
            "Node 0 Active:          900 kB\nNode 0 Active(file):     30 kB\n"
            "Node 0 Inactive(file):    2 kB");
  sys.write("node/node2/meminfo", "Node 2 MemFree: 5 kB");
  EXPECT_EQ(read_free_memory(sys.root(), std::vector{0, 1, 2}),
            (std::map<int, std::int64_t>{{0, 132 * 1024}, {2, 5 * 1024}}));
}

TEST(Topology, HasCoresAndNodesOfTheCpusThatMayBeUsed) {
  const FakeSys sys;
  for (const auto& [first, second] : {std::pair(0, 4), {1, 5}, {2, 6}, {3, 7}}) {
    const std::string list = fmt::format("{},{}", first, second);
    sys.siblings(first, list);
    sys.siblings(second, list);
  }
  sys.write("node/node0/cpulist", "0-1,4-5");
  sys.write("node/node1/cpulist", "2-3,6-7");
  sys.write("node/has_memory", "0-1");
  sys.write("node/possible", "0-1");
  const std::vector<int> allowed = {1, 2, 5, 7};
  const Topology topology = read_topology(sys.root(), allowed);
  using Places = std::vector<std::tuple<int, int, int>>;
  EXPECT_EQ(places(topology), (Places{{1, 1, 0}, {2, 2, 1}, {5, 1, 0}, {7, 3, 1}}));
  EXPECT_EQ(topology.memory_nodes, (std::vector{0, 1}));
}

// A node without CPUs has an empty list, and node numbers may have gaps.
TEST(Topology, HasHolesAndNodesOfMemoryAlone) {
  const FakeSys sys;
  sys.siblings(8, "8-9");
  sys.siblings(9, "8-9");
  sys.write("node/node2/cpulist", "8-9");
  sys.write("node/node10/cpulist", "");
  sys.write("node/has_memory", "2,10");
  const std::vector<int> allowed = {8, 9};
  const Topology topology = read_topology(sys.root(), allowed);
  using Places = std::vector<std::tuple<int, int, int>>;
  EXPECT_EQ(places(topology), (Places{{8, 8, 2}, {9, 8, 2}}));
  EXPECT_EQ(topology.memory_nodes, (std::vector{2, 10}));
}

TEST(Topology, OfASystemThatIsSilentIsCoresOnOneNode) {
  const FakeSys sys;
  const std::vector<int> allowed = {0, 3};
  const Topology topology = read_topology(sys.root(), allowed);
  using Places = std::vector<std::tuple<int, int, int>>;
  EXPECT_EQ(places(topology), (Places{{0, 0, 0}, {3, 3, 0}}));
  EXPECT_TRUE(topology.memory_nodes.empty());
}

TEST(CpuList, IsReadInAnyOrder) {
  EXPECT_EQ(*parse_cpu_list("0"), std::vector{0});
  EXPECT_EQ(*parse_cpu_list("8,0-3"), (std::vector{0, 1, 2, 3, 8}));
  EXPECT_EQ(*parse_cpu_list("2-3,3,1-2"), (std::vector{1, 2, 3}));
  for (const char* wrong : {"", ",", "1,", "a", "1-", "-1", "3-1", "1--2", "1 2", "0x1", "1.5",
                            "65536", "0-99999999999", "1-2-3"}) {
    const auto refused = parse_cpu_list(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("like 0-7,16"), std::string::npos);
  }
}

TEST(CpuList, IsWrittenInRuns) {
  EXPECT_EQ(format_cpu_list({}), "");
  EXPECT_EQ(format_cpu_list({5}), "5");
  EXPECT_EQ(format_cpu_list({0, 4, 1, 5, 9}), "0-1,4-5,9");
}

}  // namespace
}  // namespace protean
