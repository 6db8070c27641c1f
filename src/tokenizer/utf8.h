#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace protean {

// The first character of a text. A broken sequence is as long as Unicode's "maximal subpart", so
// that it becomes as many U+FFFD as in other decoders.
struct Utf8Step {
  enum class Kind { kCharacter, kBroken, kUnfinished };
  Kind kind = Kind::kBroken;
  int bytes = 1;
  std::int32_t code_point = -1;  // set for kCharacter
};

// Returns kUnfinished if all of `text` is the beginning of one character. Precondition: not empty.
Utf8Step utf8_step(std::string_view text);

// Returns the length of the longest prefix that consists of whole, valid characters.
std::size_t utf8_valid_prefix(std::string_view text);

void append_utf8(std::string& text, std::int32_t code_point);

}  // namespace protean
