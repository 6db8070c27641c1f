#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>

namespace protean {

// Quotes text from a file for a one-line message: shortened, and with everything except printable
// ASCII escaped, because the text need not be UTF-8.
inline std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 100;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kLongest)) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    if (c >= ' ' && c <= '~') {
      quoted += c;
    } else {
      fmt::format_to(std::back_inserter(quoted), "\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return quoted + (text.size() > kLongest ? "\"..." : "\"");
}

}  // namespace protean
