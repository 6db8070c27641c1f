#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace protean {

// Writes a new file front to back. Errors name the file.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::filesystem::path& path);  // fails if it exists
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  Status write(std::span<const std::byte> bytes);
  Status finish();  // returns once everything is on disk

 private:
  OutputFile(int file, std::string name);

  int file_;
  std::string name_;
};

}  // namespace protean
