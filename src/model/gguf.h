#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/mapped_file.h"

namespace protean {

// A tensor of a GGUF file. Dimensions are in GGUF's order, the row length first.
struct GgufTensor {
  std::uint32_t type = 0;  // ggml's number, see find_ggml_type()
  std::vector<std::int64_t> dimensions;
  std::span<const std::byte> bytes;  // inside the file; empty if the type is unknown
};

// A memory-mapped GGUF file of version 2 or 3. open() checks every length, count, type, name and
// range before anything is used. Immutable.
class GgufFile {
 public:
  // Opens a file, or all parts of a model that is split (NAME-00001-of-00003.gguf) by the first.
  static Result<GgufFile> open(const std::filesystem::path& path);
  // Borrows `bytes`; `name` is for messages.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  // Return the value of a key, nothing if the file lacks the key, an error if the value has another
  // type. Integers of any width count as integers; integers count as numbers.
  Result<std::optional<std::int64_t>> find_integer(std::string_view key) const;
  Result<std::optional<double>> find_number(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<std::optional<std::string>> find_string(std::string_view key) const;

  // Return an array, empty if the file lacks the key.
  Result<std::vector<std::string>> strings(std::string_view key) const;
  Result<std::vector<float>> floats(std::string_view key) const;
  Result<std::vector<std::int64_t>> integers(std::string_view key) const;

  bool has(std::string_view key) const { return values_.contains(key); }
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr if not there

  const std::string& name() const { return name_; }
  Status unchanged() const { return of_all_parts(&MappedFile::unchanged); }
  Status current() const { return of_all_parts(&MappedFile::current); }
  int version() const { return version_; }
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }

 private:
  friend class GgufParser;

  // The place of a value. Arrays are decoded when they are asked for.
  struct Value {
    std::uint32_t type = 0;  // type of the value, or of an array's elements
    bool is_array = false;
    std::uint64_t count = 1;
    std::size_t offset = 0;
  };
  static Result<GgufFile> open_one(const std::filesystem::path& path);
  Status open_parts(const std::filesystem::path& first);
  Status of_all_parts(Status (MappedFile::*ask)() const) const;
  const Value* find(std::string_view key) const;
  Error wrong_type(std::string_view key, const Value& value, std::string_view want) const;
  std::vector<std::string> strings_at(const Value& value) const;

  MappedFile file_;  // empty if the bytes are borrowed
  std::span<const std::byte> bytes_;
  std::string name_;
  int version_ = 0;
  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;  // tensors of all parts
  std::vector<MappedFile> parts_;                           // the parts after the first
};

}  // namespace protean
