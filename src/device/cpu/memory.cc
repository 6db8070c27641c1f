#include "device/cpu/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace protean::cpu {
namespace {

constexpr std::int64_t kPageBytes = 4 * kKiB;
constexpr std::int64_t kLargeBlockBytes = 2 * kMiB;

std::byte* align_up(std::byte* address, std::int64_t alignment) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  const auto rest = value % static_cast<std::uintptr_t>(alignment);
  return rest == 0 ? address : address + (static_cast<std::uintptr_t>(alignment) - rest);
}

void unmap(std::byte* begin, std::byte* end) {
  if (begin != end) {
    check(munmap(begin, static_cast<std::size_t>(end - begin)) == 0,
          "munmap of memory that we mapped");
  }
}

}  // namespace

Result<Region> Region::map(std::int64_t bytes) {
  if (bytes < 0 || bytes > INT64_MAX - 2 * kLargeBlockBytes) {
    return make_error(ErrorCode::kInvalidArgument, "cannot map a memory region of {} bytes", bytes);
  }
  Region region;
  if (bytes == 0) {
    return region;
  }
  // Huge pages need their own alignment: maps more than asked and unmaps both ends.
  const std::int64_t slack = bytes >= kLargeBlockBytes ? kLargeBlockBytes : 0;
  const std::int64_t mapped = round_up(bytes, kPageBytes) + slack;
  void* address = mmap(nullptr, static_cast<std::size_t>(mapped), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    const int reason = errno;
    return make_error(ErrorCode::kExhausted,
                      "the system refused {} of memory ({}): use less memory, or free some",
                      format_bytes(bytes), std::strerror(reason));
  }
  auto* begin = static_cast<std::byte*>(address);
  region.data_ = slack > 0 ? align_up(begin, kLargeBlockBytes) : begin;
  region.bytes_ = bytes;
  unmap(begin, region.data_);
  unmap(region.data_ + (mapped - slack), begin + mapped);
  // A kernel without huge pages refuses, which is harmless.
  (void)madvise(region.data_, static_cast<std::size_t>(mapped - slack), MADV_HUGEPAGE);
  return region;
}

Region::~Region() {
  unmap(data_, data_ + round_up(bytes_, kPageBytes));
}

Region::Region(Region&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace protean::cpu
