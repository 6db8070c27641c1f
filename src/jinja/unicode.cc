#include "jinja/unicode.h"

#include <algorithm>
#include <optional>
#include <span>

#include "jinja/unicode_tables.h"

namespace protean::jinja {
namespace {

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kDottedCapitalI = 0x130;

bool within(std::span<const CodeRange> table, char32_t point) {
  const auto after = std::upper_bound(table.begin(), table.end(), point,
                                      [](char32_t p, const CodeRange& r) { return p < r.first; });
  return after != table.begin() && point <= (after - 1)->last;
}

char32_t changed(std::span<const CaseRange> table, char32_t point) {
  const auto after = std::upper_bound(table.begin(), table.end(), point,
                                      [](char32_t p, const CaseRange& r) { return p < r.first; });
  if (after == table.begin()) return point;
  const CaseRange& row = *(after - 1);
  const bool inside = point <= row.last && (point - row.first) % row.step == 0;
  return inside ? point + static_cast<char32_t>(row.delta) : point;
}

void append_upper(std::string& out, char32_t point) {
  const auto table = long_upper_table();
  const auto row = std::lower_bound(table.begin(), table.end(), point,
                                    [](const LongCase& l, char32_t p) { return l.from < p; });
  if (row == table.end() || row->from != point) {
    append_utf8(out, changed(upper_table(), point));
    return;
  }
  for (const char32_t part : row->to) {
    if (part != 0) append_utf8(out, part);
  }
}

// Returns the title case that differs from upper case: that of the four digraphs with three cases,
// and of Georgian, whose title case is lower case.
std::optional<char32_t> special_title(char32_t point) {
  if (point >= 0x1C4 && point <= 0x1CC) return 0x1C5 + (point - 0x1C4) / 3 * 3;
  if (point >= 0x1F1 && point <= 0x1F3) return 0x1F2;
  if (point >= 0x10D0 && point <= 0x10FF) return point;
  return std::nullopt;
}

void append_title(std::string& out, char32_t point) {
  if (const auto special = special_title(point)) {
    append_utf8(out, *special);
    return;
  }
  std::string upper;
  append_upper(upper, point);
  const std::size_t first = decode(upper, 0).bytes;
  out += upper.substr(0, first);
  out += to_lower(std::string_view(upper).substr(first));
}

bool is_cased(char32_t point) {
  return is_upper(point) || is_lower(point);
}

// Whether a capital sigma is the last letter of a word, where its lower case differs.
bool ends_word(std::string_view text, std::size_t at, std::size_t bytes, bool after_cased) {
  const std::size_t next = at + bytes;
  return after_cased && (next >= text.size() || !is_cased(decode(text, next).value));
}

// Appends text[from..] in lower case. `after_cased`: a cased letter precedes it.
void append_lower(std::string& out, std::string_view text, std::size_t from, bool after_cased) {
  for (std::size_t at = from; at < text.size();) {
    const CodePoint c = decode(text, at);
    if (!c.valid) {
      out += text[at];
    } else if (c.value == kCapitalSigma) {
      append_utf8(out, ends_word(text, at, c.bytes, after_cased) ? 0x3C2 : 0x3C3);
    } else if (c.value == kDottedCapitalI) {
      append_utf8(out, 'i');
      append_utf8(out, 0x307);
    } else {
      append_utf8(out, changed(lower_table(), c.value));
    }
    after_cased = c.valid && is_cased(c.value);
    at += c.bytes;
  }
}

bool in_set(std::string_view set, std::string_view character) {
  return set.find(character) != std::string_view::npos;
}

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) {
    --at;
  }
  return decode(text, at).bytes == text.size() - at ? at : text.size() - 1;
}

template <class Remove>
std::string_view strip_left_if(std::string_view text, Remove&& remove) {
  while (!text.empty()) {
    const CodePoint c = decode(text, 0);
    if (!remove(c, text.substr(0, c.bytes))) break;
    text.remove_prefix(c.bytes);
  }
  return text;
}

template <class Remove>
std::string_view strip_right_if(std::string_view text, Remove&& remove) {
  while (!text.empty()) {
    const std::size_t at = last_character(text);
    if (!remove(decode(text, at), text.substr(at))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

}  // namespace

CodePoint decode(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  const CodePoint broken{lead, 1, false};
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < bytes) return broken;
  char32_t value = lead & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return broken;
    value = value << 6 | (byte(i) & 0x3FU);
  }
  const bool overlong = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  if (overlong || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return broken;
  return {value, bytes, true};
}

void append_utf8(std::string& out, char32_t point) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3F));
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += decode(text, at).bytes) ++count;
  return count;
}

std::size_t character_offset(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += decode(text, at).bytes;
  return at;
}

bool is_space(char32_t p) {
  return (p >= 9 && p <= 13) || (p >= 28 && p <= 32) || p == 0x85 || p == 0xA0 || p == 0x1680 ||
         (p >= 0x2000 && p <= 0x200A) || p == 0x2028 || p == 0x2029 || p == 0x202F || p == 0x205F ||
         p == 0x3000;
}

bool is_printable(char32_t point) {
  return !within(unprintable_table(), point);
}
bool is_alphabetic(char32_t point) {
  return within(alphabetic_table(), point);
}
bool is_digit(char32_t point) {
  return within(digit_table(), point);
}
bool is_numeric(char32_t point) {
  return within(numeric_table(), point);
}
bool is_word(char32_t point) {
  return point == '_' || is_alphabetic(point) || is_numeric(point) || is_digit(point);
}
bool is_upper(char32_t point) {
  return point == kDottedCapitalI || changed(lower_table(), point) != point;
}
bool is_lower(char32_t point) {
  if (changed(upper_table(), point) != point) return !is_upper(point);
  const auto table = long_upper_table();
  return std::any_of(table.begin(), table.end(),
                     [=](const LongCase& l) { return l.from == point; });
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](std::string_view character) {
    const CodePoint c = decode(character, 0);
    c.valid ? append_upper(out, c.value) : void(out += character);
  });
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_lower(out, text, 0, false);
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  if (text.empty()) return out;
  const CodePoint c = decode(text, 0);
  c.valid ? append_title(out, c.value) : void(out += text[0]);
  append_lower(out, text, c.bytes, c.valid && is_cased(c.value));
  return out;
}

std::string title_case(std::string_view text) {
  std::string out;
  bool inside = false;
  for_each_character(text, [&](std::string_view character) {
    const CodePoint c = decode(character, 0);
    const bool cased = c.valid && is_cased(c.value);
    if (!cased) {
      out += character;
    } else if (inside) {
      append_lower(out, character, 0, false);
    } else {
      append_title(out, c.value);
    }
    inside = cased;
  });
  return out;
}

std::string_view strip_left(std::string_view text) {
  return strip_left_if(text, [](CodePoint c, auto) { return c.valid && is_space(c.value); });
}
std::string_view strip_right(std::string_view text) {
  return strip_right_if(text, [](CodePoint c, auto) { return c.valid && is_space(c.value); });
}
std::string_view strip_left(std::string_view text, std::string_view set) {
  return strip_left_if(text, [&](CodePoint, std::string_view c) { return in_set(set, c); });
}
std::string_view strip_right(std::string_view text, std::string_view set) {
  return strip_right_if(text, [&](CodePoint, std::string_view c) { return in_set(set, c); });
}

}  // namespace protean::jinja
