#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

// The memory of page pools as the system sees it, and what can happen to it there.

namespace protean {

// Returns the files of the pools of this process, as file descriptors in ascending order.
inline std::vector<int> pool_files() {
  std::vector<int> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (target.starts_with("/memfd:protean-pages")) {
      files.push_back(std::stoi(entry.path().filename().string()));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Returns the bytes of a pool's file that are mapped: all pages that its ranges have borrowed.
inline std::int64_t mapped_bytes(int file) {
  struct stat of_file = {};
  EXPECT_EQ(fstat(file, &of_file), 0);
  std::ifstream maps("/proc/self/maps");
  std::int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %lu", &begin, &end, &inode) == 3 &&
        inode == of_file.st_ino) {
      bytes += static_cast<std::int64_t>(end - begin);
    }
  }
  return bytes;
}

// Loses the memory of a pool: from now on each first access to a page of it is an error, as to
// memory that the machine has found to be damaged.
inline void lose_memory(int file) {
  ASSERT_EQ(ftruncate(file, 0), 0);
}

// While it lives, the system refuses to map pages of a pool.
class MapsFail {
 public:
  explicit MapsFail(int file) : file_(file), kept_(dup(file)) {
    const int other = open("/dev/null", O_RDWR | O_CLOEXEC);
    EXPECT_EQ(dup3(other, file_, O_CLOEXEC), file_);
    close(other);
  }
  ~MapsFail() {
    EXPECT_EQ(dup3(kept_, file_, O_CLOEXEC), file_);
    close(kept_);
  }
  MapsFail(const MapsFail&) = delete;
  MapsFail& operator=(const MapsFail&) = delete;

 private:
  const int file_;
  const int kept_;
};

}  // namespace protean
