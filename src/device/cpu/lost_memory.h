#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace protean::cpu {

// Becomes true when an access finds that memory is lost: by an uncorrectable memory error, or
// because the file behind it was cut. It stays true.
using LostMemory = std::atomic<bool>;

// Lets the program go on after an access to lost memory (SIGBUS) in a range of addresses. Before
// the access goes on, `lost` becomes true and the page gets other memory, which holds zeros. What
// is computed from the page is wrong from then on, so its users must look at `lost` afterwards. An
// access to lost memory elsewhere ends the program, as it would without any watch.
class LostMemoryWatch {
 public:
  LostMemoryWatch() = default;
  // The range is a number of whole pages, and `lost` must outlive the watch. If very many ranges
  // are watched already, this one is not.
  LostMemoryWatch(std::byte* begin, std::int64_t pages, std::int64_t page_bytes, LostMemory& lost);
  ~LostMemoryWatch();
  LostMemoryWatch(LostMemoryWatch&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}
  LostMemoryWatch& operator=(LostMemoryWatch&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }

 private:
  std::ptrdiff_t slot_ = -1;  // in the table of all watches; -1: nothing is watched
};

}  // namespace protean::cpu
