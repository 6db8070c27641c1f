#include "base/small_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace protean {
namespace {

namespace fs = std::filesystem;

TEST(SmallFile, OnlyRegularFilesOfABoundedSizeAreRead) {
  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("small_file_test.{}", ::getpid());
  fs::create_directories(folder);
  const fs::path file = folder / "file";
  EXPECT_EQ(read_small_file(file).error().code, ErrorCode::kNotFound);
  std::ofstream(file, std::ios::binary) << "a\n\0b";
  EXPECT_EQ(*read_small_file(file), "a\n");
  std::ofstream(file, std::ios::trunc).close();
  EXPECT_EQ(*read_small_file(file), "");
  std::ofstream(file) << "abcd";
  EXPECT_EQ(*read_small_file(file, 4), "abcd");
  EXPECT_EQ(read_small_file(file, 3).error().code, ErrorCode::kInvalidArgument);

  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder / "endless");
  for (const fs::path& odd : {pipe, folder / "endless", folder}) {
    EXPECT_EQ(read_small_file(odd).error().message, odd.string() + " is not a regular file");
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace protean
