#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace protean {

// GPT-2's printable alphabet, in which vocabularies write each of the 256 bytes as a visible
// character (a space is U+0120). from_ returns nothing if a character is not in the alphabet.
std::string to_byte_alphabet(std::string_view bytes);
std::optional<std::string> from_byte_alphabet(std::string_view text);

// Returns the byte of a SentencePiece byte token: 10 for "<0x0A>".
std::optional<int> byte_of_token(std::string_view text);

}  // namespace protean
