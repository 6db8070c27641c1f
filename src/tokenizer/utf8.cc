#include "tokenizer/utf8.h"

namespace protean {
namespace {

struct Lead {
  int bytes;          // length of the character; 0 for a byte that starts none
  unsigned char low;  // range of the second byte, which excludes overlong forms and surrogates
  unsigned char high;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) {
    return {3, static_cast<unsigned char>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<unsigned char>(byte == 0xED ? 0x9F : 0xBF)};
  }
  if (byte < 0xF5) {
    return {4, static_cast<unsigned char>(byte == 0xF0 ? 0x90 : 0x80),
            static_cast<unsigned char>(byte == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const Lead lead = lead_of(first);
  if (lead.bytes == 0) {
    return {Utf8Step::Kind::kBroken, 1, -1};
  }
  if (lead.bytes == 1) {
    return {Utf8Step::Kind::kCharacter, 1, first};
  }
  std::int32_t code_point = first & (0x7F >> lead.bytes);
  for (int i = 1; i < lead.bytes; ++i) {
    if (static_cast<std::size_t>(i) == text.size()) {
      return {Utf8Step::Kind::kUnfinished, i, -1};
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) {
      return {Utf8Step::Kind::kBroken, i, -1};
    }
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {Utf8Step::Kind::kCharacter, lead.bytes, code_point};
}

std::size_t utf8_valid_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      break;
    }
    at += step.bytes;
  }
  return at;
}

void append_utf8(std::string& text, std::int32_t code_point) {
  const auto put = [&text](std::int32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace protean
