#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/architecture.h"
#include "model/checkpoint.h"

namespace protean {

// Called after each chunk of weights is written.
using WriteProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

// Writes a model as one .safetensors file in bf16, in chunks of bounded size.
Status write_safetensors(const Checkpoint& checkpoint, const TensorNames& names,
                         const std::filesystem::path& path, const WriteProgress& progress);

// Builds the key-value pairs of a GGUF file.
class GgufMetadata {
 public:
  void add(std::string_view key, std::uint32_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, const std::vector<std::string>& values);
  void add(std::string_view key, const std::vector<std::int32_t>& values);

  std::uint64_t pairs() const { return pairs_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void header(std::string_view key, std::uint32_t type);

  std::uint64_t pairs_ = 0;
  std::string bytes_;
};

// Writes a model as a GGUF file (version 3) with matrices in bf16 and norms and biases in f32, like
// llama.cpp. `names` and the order of query and key rows must already be GGUF's.
Status write_gguf(const Checkpoint& checkpoint, const TensorNames& names,
                  const GgufMetadata& metadata, const std::filesystem::path& path,
                  const WriteProgress& progress);

}  // namespace protean
