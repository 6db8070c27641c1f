#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/gguf.h"

namespace protean {

// Parses a file once, front to back. Checks every read against the bytes left. A failed read keeps
// its reason in error_ and makes all later reads fail.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, GgufFile& file) : bytes_(bytes), file_(file) {}

  Status parse();

 private:
  bool parse_header();
  bool parse_value();
  bool skip_array(GgufFile::Value& value);
  bool parse_tensor();
  bool parse_alignment();
  bool place_tensors();
  bool refuse_overlaps() const;

  template <class T>
  bool read(T& value, std::string_view what);
  bool read_string(std::string& text, std::uint64_t longest, std::string_view what);
  bool skip(std::uint64_t bytes, std::string_view what);

  template <class... Args>
  bool fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) const {
    if (!error_) {
      error_ =
          make_error(code, "{}: {}", file_.name_, fmt::format(format, std::forward<Args>(args)...));
    }
    return false;
  }

  std::uint64_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> bytes_;
  GgufFile& file_;
  std::size_t at_ = 0;
  std::uint64_t values_ = 0;
  std::uint64_t tensors_ = 0;
  std::uint64_t alignment_ = 32;  // unless the metadata says otherwise
  std::vector<std::pair<const std::string*, std::uint64_t>> offsets_;  // by tensor, in file order
  mutable std::optional<Error> error_;
};

}  // namespace protean
