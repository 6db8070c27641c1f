#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace protean {

// Builds a GGUF file in memory without checks, because tests of broken files use it too.
class GgufWriter {
 public:
  explicit GgufWriter(std::uint32_t version = 3, std::uint32_t alignment = 32)
      : version_(version), alignment_(alignment) {}

  void add(std::string_view key, std::uint32_t value) { scalar(key, 4, &value, sizeof(value)); }
  void add(std::string_view key, float value) { scalar(key, 6, &value, sizeof(value)); }
  void add(std::string_view key, bool value) { scalar(key, 7, &value, sizeof(value)); }
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const std::vector<std::string>& values);
  void add(std::string_view key, const std::vector<float>& values);
  void add(std::string_view key, const std::vector<std::int32_t>& values);
  // Adds a value of any type and bytes.
  void scalar(std::string_view key, std::uint32_t type, const void* value, std::size_t bytes);

  // Adds a tensor, its row length first. Data is padded to the alignment.
  void add_tensor(std::string_view name, const std::vector<std::uint64_t>& dimensions,
                  std::uint32_t type, std::string_view data);

  // Returns the file without padding after the last tensor, so that every byte is needed.
  std::string file() const;

 private:
  std::uint32_t version_;
  std::uint32_t alignment_;
  std::uint64_t values_ = 0;
  std::uint64_t tensors_ = 0;
  std::string metadata_;
  std::string tensor_infos_;
  std::string data_;
};

}  // namespace protean
