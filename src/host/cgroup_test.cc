#include "host/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

namespace protean {
namespace {

namespace fs = std::filesystem;

struct CgroupTest : testing::Test {
  CgroupTest() { write("own", "1:name=old:/other\n0::/a.slice/b.service\n"); }
  ~CgroupTest() override { fs::remove_all(folder); }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text;
  }
  CgroupLimits limits() const { return read_cgroup_limits(folder / "own", folder / "root"); }

  const fs::path folder =
      fs::path(testing::TempDir()) / ("cgroup_test" + std::to_string(::getpid()));
};

TEST_F(CgroupTest, WithoutLimitsAllIsFree) {
  write("root/a.slice/b.service/memory.max", "max\n");
  write("root/a.slice/b.service/memory.current", "100\n");
  write("root/a.slice/b.service/cpu.max", "max 100000\n");
  EXPECT_EQ(limits().free_bytes, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(limits().cores, std::numeric_limits<int>::max());
}

TEST_F(CgroupTest, EachCgroupOnTheWayToTheRootMayLimit) {
  write("root/a.slice/b.service/memory.max", "1000\n");
  write("root/a.slice/b.service/memory.current", "100\n");
  EXPECT_EQ(limits().free_bytes, 900);
  write("root/a.slice/memory.max", "1200\n");
  write("root/a.slice/memory.current", "700\n");
  write("root/a.slice/memory.stat", "anon 400\nactive_file 20\ninactive_file 30\n");
  EXPECT_EQ(limits().free_bytes, 550) << "the slice's, with its page cache";
  write("root/memory.max", "300\n");
  write("root/memory.current", "400\n");
  EXPECT_EQ(limits().free_bytes, 0) << "a container's, of which too much is used";

  write("root/a.slice/cpu.max", "250000 100000\n");
  EXPECT_EQ(limits().cores, 3);
  write("root/cpu.max", "10000 100000\n");
  EXPECT_EQ(limits().cores, 1);
}

TEST_F(CgroupTest, WithoutACgroupOnlyTheRootLimits) {
  fs::remove(folder / "own");
  write("root/a.slice/memory.max", "5\n");
  write("root/a.slice/memory.current", "0\n");
  write("root/memory.max", "70\n");
  write("root/memory.current", "0\n");
  EXPECT_EQ(limits().free_bytes, 70);
}

}  // namespace
}  // namespace protean
