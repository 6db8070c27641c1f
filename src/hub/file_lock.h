#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"

namespace protean::hub {

// An exclusive lock between processes on a file (flock), which ends with the process at the latest.
// huggingface_hub locks the same files in the same way.
class FileLock {
 public:
  // Takes the lock if it is free; returns nothing if another process or FileLock has it. Creates
  // the file.
  static Result<std::optional<FileLock>> try_lock(const std::filesystem::path& path);

  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace protean::hub
