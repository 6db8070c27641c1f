// Any bytes are either refused as a safetensors file or name tensors whose bytes can all be read.

#include <cstdint>

#include "base/check.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = SafetensorsFile::parse(bytes, "fuzz.safetensors");
  if (!file) {
    check(file.error().message.find('\n') == std::string::npos, "errors are one line");
    return 0;
  }
  unsigned sum = 0;
  std::size_t total = 0;
  for (const auto& [name, tensor] : file->tensors()) {
    for (const std::byte byte : tensor.bytes) {
      sum += std::to_integer<unsigned>(byte);
    }
    total += tensor.bytes.size();
  }
  check(total <= size && sum <= 255 * size, "tensors do not share bytes");
  return 0;
}
