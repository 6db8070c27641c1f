#include "tokenizer/byte_alphabet.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <system_error>

#include "tokenizer/utf8.h"

namespace protean {
namespace {

constexpr int kAlphabetEnd = 256 + 68;  // 68 bytes are not printable in Latin-1

struct Alphabet {
  std::array<std::int32_t, 256> character{};
  std::array<int, kAlphabetEnd> byte{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  std::int32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    alphabet.character[byte] = printable ? byte : next++;
    alphabet.byte[alphabet.character[byte]] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    append_utf8(text, kAlphabet.character[static_cast<unsigned char>(byte)]);
  }
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.kind != Utf8Step::Kind::kCharacter || step.code_point >= kAlphabetEnd ||
        kAlphabet.byte[step.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.byte[step.code_point]));
    text.remove_prefix(step.bytes);
  }
  return bytes;
}

std::optional<int> byte_of_token(std::string_view text) {
  unsigned byte = 0;  // unsigned, so that a sign is not accepted
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') {
    return std::nullopt;
  }
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  return error == std::errc() && end == text.data() + 5 ? std::optional<int>(byte) : std::nullopt;
}

}  // namespace protean
