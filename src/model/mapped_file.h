#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace protean {

// Maps a whole file read-only; pages are read when they are touched. If the file is truncated while
// it is mapped, touching the lost pages ends the process.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // The address does not change when the object is moved.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Releases the memory of the pages that lie wholly inside a piece of a MappedFile. A later access
// reads the file again.
void release_pages(std::span<const std::byte> piece);

}  // namespace protean
