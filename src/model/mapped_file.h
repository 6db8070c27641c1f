#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace protean {

// A file mapped read-only. Its pages are loaded when they are accessed. If another process
// truncates the file, an access to the missing pages ends this process.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // The address does not change if the object is moved.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Frees the memory of all pages that are entirely inside a piece of a MappedFile. A later access
// reads the file again.
void release_pages(std::span<const std::byte> piece);

}  // namespace protean
