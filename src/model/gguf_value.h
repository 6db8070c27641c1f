#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

// Metadata values, shared by gguf_parser.cc and gguf.cc. Other files use gguf.h.
namespace protean {

// The value types by their numbers in the file.
enum GgufValueType : std::uint32_t {
  kGgufU8 = 0,
  kGgufI8 = 1,
  kGgufU16 = 2,
  kGgufI16 = 3,
  kGgufU32 = 4,
  kGgufI32 = 5,
  kGgufF32 = 6,
  kGgufBool = 7,
  kGgufString = 8,
  kGgufArray = 9,
  kGgufU64 = 10,
  kGgufI64 = 11,
  kGgufF64 = 12,
};

// Returns the bytes of a value; 0 for types without a fixed size.
inline std::uint64_t gguf_type_bytes(std::uint32_t type) {
  static constexpr std::uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

template <class T>
T load_bytes(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace protean
