#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/mapped_file.h"

namespace protean {

struct SafetensorsTensor {
  std::string type;  // "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // inside the file, with the length of type and shape
};

// A memory-mapped .safetensors file. open() checks the whole header as strictly as the format's
// definition: ranges cover the data without holes or overlaps, and names are unique. Immutable.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  // Borrows `bytes`; `name` is for messages.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string name);

  const SafetensorsTensor* find_tensor(std::string_view name) const;  // nullptr if not there
  const std::map<std::string, SafetensorsTensor, std::less<>>& tensors() const { return tensors_; }
  const std::string& name() const { return name_; }
  Status unchanged() const { return file_.unchanged(); }
  Status current() const { return file_.current(); }

 private:
  Status check_coverage(std::span<const std::byte> data) const;

  MappedFile file_;  // empty if the bytes are borrowed
  std::string name_;
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
};

}  // namespace protean
