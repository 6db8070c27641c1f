#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace protean::cpu {

// An anonymous, page-aligned, zeroed region of memory, unmapped on destruction. The system
// allocates its pages on first use.
class Region {
 public:
  Region() = default;
  static Result<Region> map(std::int64_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace protean::cpu
