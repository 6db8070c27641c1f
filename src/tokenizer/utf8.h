#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace protean {

// What the front of some bytes is. A broken sequence is as long as Unicode's "maximal subpart", so
// that it becomes as many U+FFFD as other decoders make of it.
struct Utf8Step {
  enum class Kind { kCharacter, kBroken, kUnfinished };
  Kind kind = Kind::kBroken;
  int bytes = 1;
  std::int32_t code_point = -1;  // of a kCharacter
};

// Precondition: text is not empty. kUnfinished: all of text is the beginning of one character.
Utf8Step utf8_step(std::string_view text);

// The length of the longest front of text that is whole, valid characters.
std::size_t utf8_valid_prefix(std::string_view text);

void append_utf8(std::string& text, std::int32_t code_point);

}  // namespace protean
