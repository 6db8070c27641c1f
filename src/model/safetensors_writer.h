#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/output_file.h"

namespace protean {

struct PlannedTensor {
  std::string name;
  std::string type;  // "BF16", "F16", "F32" or "I32"
  std::vector<std::int64_t> shape;

  std::int64_t bytes() const;
};

// Writes a .safetensors file front to back in bounded memory. The header comes first, so all
// tensors are planned before any is written. An unfinished file is not valid.
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                          const std::vector<PlannedTensor>& tensors);

  // Writes the next bytes of the planned tensors, which follow each other without gaps.
  Status write(std::span<const std::byte> bytes);
  // Ends the file, of which everything planned must be written. Returns once it is on disk.
  Status finish();

 private:
  SafetensorsWriter(OutputFile file, std::int64_t bytes)
      : file_(std::move(file)), left_bytes_(bytes) {}

  OutputFile file_;
  std::int64_t left_bytes_;
};

}  // namespace protean
