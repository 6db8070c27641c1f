#include "tokenizer/base64.h"

#include <cstdint>

namespace protean {

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  while (text.ends_with('=')) {
    text.remove_suffix(1);
  }
  for (const char c : text) {
    const std::size_t value = kBase64Alphabet.find(c);
    if (value == std::string_view::npos) {
      return std::nullopt;
    }
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>((bits >> count) & 0xFF));
    }
  }
  return bytes;
}

}  // namespace protean
