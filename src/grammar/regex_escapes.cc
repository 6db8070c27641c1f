#include "grammar/regex_escapes.h"

#include <unicode/uset.h>

#include <memory>
#include <string>

#include "tokenizer/utf8.h"

namespace protean::grammar {

namespace {

const CharacterClass& digits() {
  static const CharacterClass kDigits({{'0', '9'}});
  return kDigits;
}

const CharacterClass& word() {
  static const CharacterClass kWord({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  return kWord;
}

CharacterClass spaces(RegexDialect dialect) {
  static const CharacterClass kAscii({{'\t', '\r'}, {' ', ' '}});
  static const CharacterClass kUnicode({{'\t', '\r'},
                                        {' ', ' '},
                                        {0xa0, 0xa0},
                                        {0x1680, 0x1680},
                                        {0x2000, 0x200a},
                                        {0x2028, 0x2029},
                                        {0x202f, 0x202f},
                                        {0x205f, 0x205f},
                                        {0x3000, 0x3000},
                                        {0xfeff, 0xfeff}});
  return dialect == RegexDialect::kPcre ? kAscii : kUnicode;
}

int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') {
    return digit - '0';
  }
  const char lower = static_cast<char>(digit | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

bool is_letter_or_digit(CodePoint character) {
  return character < 0x80 && character != '_' && word().contains(character);
}

// Unicode's own tables, as this ICU has them.
std::optional<CharacterClass> unicode_property(const std::string& name) {
  const std::u16string set = u"[\\p{" + std::u16string(name.begin(), name.end()) + u"}]";
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<USet, decltype(&uset_close)> found(
      uset_openPattern(set.data(), static_cast<std::int32_t>(set.size()), &status), &uset_close);
  if (U_FAILURE(status)) {
    return std::nullopt;
  }
  std::vector<CodePointRange> ranges;
  for (std::int32_t i = 0; i < uset_getItemCount(found.get()); ++i) {
    UChar32 first = 0;
    UChar32 last = 0;
    if (uset_getItem(found.get(), i, &first, &last, nullptr, 0, &status) == 0) {
      ranges.push_back({first, last});
    }
  }
  return CharacterClass(std::move(ranges));
}

}  // namespace

CharacterClass line_ends(RegexDialect dialect) {
  return dialect == RegexDialect::kPcre
             ? CharacterClass::of('\n')
             : CharacterClass({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

bool RegexReader::accept(char next) {
  if (!failed() && looking_at(next)) {
    ++position_;
    return true;
  }
  return false;
}

bool RegexReader::accept(std::string_view next) {
  if (!failed() && pattern_.substr(position_).starts_with(next)) {
    position_ += next.size();
    return true;
  }
  return false;
}

CodePoint RegexReader::character() {
  if (at_end()) {
    fail("it ends too early");
    return 0;
  }
  const Utf8Step step = utf8_step(pattern_.substr(position_));
  position_ += static_cast<std::size_t>(step.bytes);
  return step.code_point;
}

std::optional<std::uint32_t> RegexReader::number(std::uint32_t most) {
  std::optional<std::uint32_t> value;
  while (!at_end() && digits().contains(pattern_[position_])) {
    value = value.value_or(0) * 10 + static_cast<std::uint32_t>(pattern_[position_++] - '0');
    if (*value > most) {
      fail("a repeat is too large");
      return std::nullopt;
    }
  }
  return value;
}

void RegexReader::fail(std::string_view what) {
  if (!failed()) {
    error_ = make_error(ErrorCode::kInvalidArgument, "pattern '{}' at character {}: {}", pattern_,
                        code_points(pattern_.substr(0, position_)).size(), what);
  }
}

void RegexReader::refuse(std::string_view feature) {
  if (!failed()) {
    error_ = make_error(ErrorCode::kUnsupported, "pattern '{}' at character {}: {} not supported",
                        pattern_, code_points(pattern_.substr(0, position_)).size(),
                        std::string(feature) + " are");
  }
}

CodePoint RegexReader::hex(int digits) {
  CodePoint value = 0;
  for (int i = 0; i < digits; ++i) {
    const int digit = at_end() ? -1 : hex_value(pattern_[position_]);
    if (digit < 0) {
      fail("a hexadecimal digit is missing");
      return 0;
    }
    value = value * 16 + digit;
    ++position_;
  }
  return value;
}

CodePoint RegexReader::braced_hex() {
  CodePoint value = 0;
  bool any = false;
  while (!at_end() && hex_value(pattern_[position_]) >= 0 && value <= kLastCodePoint) {
    value = value * 16 + hex_value(pattern_[position_++]);
    any = true;
  }
  if (!any || value > kLastCodePoint || !accept('}')) {
    fail("a character's number is not between {0} and {10ffff}");
    return 0;
  }
  return value;
}

// After "\u"; a pair of surrogates is one character.
CodePoint RegexReader::unicode_escape() {
  if (accept('{')) {
    return braced_hex();
  }
  const CodePoint first = hex(4);
  if (first < 0xd800 || first > 0xdfff) {
    return first;
  }
  if (first < 0xdc00 && accept("\\u")) {
    const CodePoint second = hex(4);
    if (second >= 0xdc00 && second <= 0xdfff) {
      return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    }
  }
  fail("half a surrogate pair is no character");
  return 0;
}

CharacterClass RegexReader::property(bool negated) {
  std::string name;
  if (accept('{')) {
    while (!at_end() && !looking_at('}')) {
      name += static_cast<char>(character() & 0x7f);
    }
    if (!accept('}')) {
      fail("a property's name does not end");
    }
  } else {
    name += static_cast<char>(character() & 0x7f);
  }
  if (name.starts_with('^')) {
    negated = !negated;
    name.erase(0, 1);
  }
  const bool plain = name.find_first_not_of(
                         "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                         "0123456789_=") == std::string::npos;
  const std::optional<CharacterClass> found = plain ? unicode_property(name) : std::nullopt;
  if (!found) {
    fail("there is no Unicode property '" + name + "'");
    return {};
  }
  return negated ? found->complement() : *found;
}

CharacterClass RegexReader::escape(bool in_brackets) {
  const CodePoint character = this->character();
  switch (character) {
    case 'd':
      return digits();
    case 'D':
      return digits().complement();
    case 'w':
      return word();
    case 'W':
      return word().complement();
    case 's':
      return spaces(dialect_);
    case 'S':
      return spaces(dialect_).complement();
    case 'p':
    case 'P':
      return property(character == 'P');
    case 't':
      return single('\t');
    case 'n':
      return single('\n');
    case 'r':
      return single('\r');
    case 'f':
      return single('\f');
    case 'v':
      return single('\v');
    case 'x':
      return single(accept('{') ? braced_hex() : hex(2));
    case 'u':
      return single(unicode_escape());
    case 'c':
      return single(this->character() & 0x1f);
    case '0':
      if (!at_end() && digits().contains(pattern_[position_])) {
        refuse("octal escapes");
      }
      return single(0);
    case 'b':
      if (in_brackets) {
        return single('\b');
      }
      [[fallthrough]];
    case 'B':
      refuse("word boundaries \\b and \\B");
      return {};
    case 'k':
    case 'g':
      refuse("back-references");
      return {};
    default:
      break;
  }
  if (character >= '1' && character <= '9') {
    refuse("back-references");
  } else if (is_letter_or_digit(character)) {
    refuse("escapes like '\\" + std::string(1, static_cast<char>(character)) + "'");
  }
  return single(character);
}

CharacterClass RegexReader::bracket_item(bool& is_class) {
  if (accept("[:") || accept("[.") || accept("[=")) {
    refuse("POSIX classes like [:alpha:]");
    return {};
  }
  if (!accept('\\')) {
    is_class = false;
    return single(character());
  }
  is_class =
      !at_end() && std::string_view("dDwWsSpP").find(pattern_[position_]) != std::string_view::npos;
  return escape(true);
}

CharacterClass RegexReader::bracket_class() {
  const bool negated = accept('^');
  CharacterClass all;
  // A ']' that comes first is itself in PCRE, and the end in ECMAScript.
  bool first = dialect_ == RegexDialect::kPcre;
  std::vector<CodePointRange> ranges;
  while (!failed() && (first || !looking_at(']'))) {
    first = false;
    bool is_class = false;
    const CharacterClass item = bracket_item(is_class);
    const std::string_view rest = pattern_.substr(position_);
    if (failed() || is_class || item.empty() || rest.size() < 2 || rest[0] != '-' ||
        rest[1] == ']') {
      ranges.insert(ranges.end(), item.ranges().begin(), item.ranges().end());
      continue;
    }
    accept('-');
    bool end_is_class = false;
    const CharacterClass end = bracket_item(end_is_class);
    if (failed()) {
      break;
    }
    if (end_is_class || end.empty() || end.ranges().front().last < item.ranges().front().first) {
      fail("a range's end is before its begin");
      break;
    }
    ranges.push_back({item.ranges().front().first, end.ranges().front().last});
  }
  if (!failed() && !accept(']')) {
    fail("a '[' is never closed");
  }
  all = CharacterClass(std::move(ranges));
  return negated ? all.complement() : all;
}

}  // namespace protean::grammar
