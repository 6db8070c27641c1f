#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace protean {

// GPT-2's printable alphabet: its vocabularies are JSON text, so each of the 256 bytes is written
// as a visible character (a space is U+0120). to_ is total; from_ is empty when some character of
// the text is not of the alphabet.
std::string to_byte_alphabet(std::string_view bytes);
std::optional<std::string> from_byte_alphabet(std::string_view text);

// SentencePiece's byte tokens: "<0x0A>" is 10.
std::optional<int> byte_of_token(std::string_view text);

}  // namespace protean
