// Any bytes are either refused or equal what encode() writes for the parsed header. A checksum
// guards the fields, so half of all inputs are given the right one.

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "model/variant_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean;
  const auto input = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(input.begin(), input.end());
  if (size % 2 == 0) {
    bytes.resize(static_cast<std::size_t>(VariantHeader::kBytes));
    const std::size_t at = bytes.size() - 8;
    const std::uint64_t checksum = XXH3_64bits(bytes.data(), at);
    for (std::size_t i = 0; i < 8; ++i) {
      bytes[at + i] = static_cast<std::byte>(checksum >> (8 * i) & 0xFFU);
    }
  }
  const auto header = VariantHeader::parse(bytes);
  if (!header) {
    check(header.error().message.find('\n') == std::string::npos, "errors are one line");
    return 0;
  }
  check(header->which.layer >= 0 && header->body_bytes >= 0, "sizes are no less than nothing");
  const auto again = header->encode();
  check(std::equal(again.begin(), again.end(), bytes.begin()), "a header has one form");
  return 0;
}
