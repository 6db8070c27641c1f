#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace protean {

// A whole file, read-only, in the address space; the pages come in as they are touched. Somebody
// who truncates the file meanwhile ends the process, as with every memory-mapped program.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Stays where it is when the object moves.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Gives back the memory of the pages that lie wholly inside a piece of a MappedFile. Reading it
// again is allowed and reads the file again.
void release_pages(std::span<const std::byte> piece);

}  // namespace protean
