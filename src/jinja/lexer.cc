#include "jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "jinja/runtime.h"
#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

// Turns line ends into \n and removes one at the very end.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_decimal(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_root();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool starts(std::string_view with) const { return rest().starts_with(with); }

  [[noreturn]] void error(std::string message) {
    throw Failure{Error{ErrorCode::kInvalidArgument, std::move(message)}, line()};
  }

  // Counts lines from where the last call stopped, since positions only grow.
  int line() {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
    counted_ = std::max(counted_, at_);
    return line_;
  }

  void add(TokenKind kind, std::string text, Value number = Value::none()) {
    tokens_.push_back({kind, line(), std::move(text), number});
  }

  void skip(std::size_t bytes) {
    at_ += bytes;
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }
  void skip_space() { skip(rest().size() - strip_left(rest()).size()); }

  // Reads text up to the next tag, then the beginning of the tag.
  void lex_root() {
    std::size_t tag = at_;
    do {
      tag = source_.find('{', tag);
    } while (tag != source_.npos && !is_tag(tag) && ++tag != source_.npos);
    if (tag == source_.npos) {
      add(TokenKind::kData, std::string(rest()));
      at_ = source_.size();
      return;
    }
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    add_data(tag, has_sign ? sign : '\0', type != '{');
    at_ = tag;
    if (type == '%' && lex_raw(has_sign)) return;
    const std::size_t begin_bytes = has_sign ? 3 : 2;
    if (type == '#') return skip_comment(begin_bytes);
    add(type == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    skip(begin_bytes);
    lex_inside(type == '%');
  }

  bool is_tag(std::size_t at) const {
    return at + 1 < source_.size() &&
           (source_[at + 1] == '%' || source_[at + 1] == '{' || source_[at + 1] == '#');
  }

  // Adds the text before a tag at `end`, without the indentation before a `strippable` tag.
  void add_data(std::size_t end, char sign, bool strippable) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = strip_right(text);
    } else if (sign != '+' && strippable) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t start = newline == text.npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && strip_left(text.substr(start)).empty()) {
        text = text.substr(0, start);
      }
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text));
  }

  // Skips the end of a tag, with all white space after "-%}" and one line end after "%}".
  bool skip_end(std::string_view end, bool trims_newline) {
    const bool minus = starts("-") && rest().substr(1).starts_with(end);
    const bool plus = trims_newline && starts("+") && rest().substr(1).starts_with(end);
    if (!minus && !plus && !starts(end)) return false;
    skip(end.size() + (minus || plus ? 1 : 0));
    if (minus) {
      skip_space();
    } else if (!plus && trims_newline && starts("\n")) {
      skip(1);
    }
    return true;
  }

  void skip_comment(std::size_t begin_bytes) {
    std::size_t end = source_.find("#}", at_ + begin_bytes);
    if (end == source_.npos) error("missing end of comment tag");
    if (end > at_ + begin_bytes && (source_[end - 1] == '-' || source_[end - 1] == '+')) --end;
    skip(end - at_);
    skip_end("#}", true);
  }

  // If "word %}" follows, moves `at` behind the word and returns true.
  bool skip_word(std::string_view word, std::size_t begin_bytes, std::size_t* at) const {
    std::string_view tail = std::string_view(source_).substr(*at + begin_bytes);
    tail = strip_left(tail);
    if (!tail.starts_with(word)) return false;
    tail = strip_left(tail.substr(word.size()));
    const std::string_view end = tail.substr(0, 3);
    if (!end.starts_with("%}") && end != "-%}" && end != "+%}") return false;
    *at = source_.size() - tail.size();
    return true;
  }

  // Reads everything between {% raw %} and {% endraw %} as text.
  bool lex_raw(bool has_sign) {
    std::size_t at = at_;
    if (!skip_word("raw", has_sign ? 3 : 2, &at) || source_[at] == '+') return false;
    skip(at - at_);
    skip_end("%}", false);
    for (std::size_t tag = source_.find("{%", at_); tag != source_.npos;
         tag = source_.find("{%", tag + 1)) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const bool signed_tag = sign == '-' || sign == '+';
      std::size_t end = tag;
      if (!skip_word("endraw", signed_tag ? 3 : 2, &end)) continue;
      add_data(tag, signed_tag ? sign : '\0', true);
      skip(end - at_);
      skip_end("%}", true);
      return true;
    }
    error("missing end of raw directive");
  }

  void lex_inside(bool block) {
    std::string open;  // closing brackets to come; a tag ends only outside of brackets
    for (;;) {
      skip_space();
      if (at_ >= source_.size()) error("unexpected end of template inside a tag");
      const int end_line = line();
      if (open.empty() && skip_end(block ? "%}" : "}}", block)) {
        tokens_.push_back({block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, end_line, ""});
        return;
      }
      lex_token(open);
    }
  }

  void lex_token(std::string& open) {
    const char c = source_[at_];
    if (is_decimal(c)) return lex_number();
    if (c == '\'' || c == '"') return lex_string(c);
    const CodePoint point = decode(source_, at_);
    if (point.valid && is_word(point.value)) return lex_name();
    lex_operator(open);
  }

  void lex_name() {
    std::size_t end = at_;
    while (end < source_.size()) {
      const CodePoint point = decode(source_, end);
      if (!point.valid || !is_word(point.value)) break;
      end += point.bytes;
    }
    const std::string name = source_.substr(at_, end - at_);
    const char32_t first = decode(name, 0).value;
    if (first != '_' && !is_alphabetic(first)) error("invalid character in identifier " + name);
    add(TokenKind::kName, name);
    skip(name.size());
  }

  void lex_operator(std::string& open) {
    constexpr std::string_view kDouble[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kSingle = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view op : kDouble) {
      if (!starts(op)) continue;
      add(TokenKind::kOperator, std::string(op));
      return skip(2);
    }
    const char c = source_[at_];
    if (kSingle.find(c) == kSingle.npos) {
      error(fmt::format("unexpected character '{}'", rest().substr(0, decode(source_, at_).bytes)));
    }
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) error(fmt::format("unexpected '{}'", c));
      if (open.back() != c) error(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    skip(1);
  }

  // Returns the end of a run of digits, in which single underscores may stand between digits.
  std::size_t digits_end(std::size_t at, int base = 10) const {
    const auto is_digit_here = [&](std::size_t i) {
      if (i >= source_.size()) return false;
      const char c = source_[i];
      const int digit = is_decimal(c)          ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : 99;
      return digit < base;
    };
    while (is_digit_here(at) ||
           (at < source_.size() && source_[at] == '_' && is_digit_here(at + 1))) {
      ++at;
    }
    return at;
  }

  static std::string without_underscores(std::string text) {
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    return text;
  }

  // Returns the end of the float that begins here, or at_ if there is none.
  std::size_t float_end() const {
    if (at_ > 0 && source_[at_ - 1] == '.') return at_;
    const auto is_digit_at = [&](std::size_t i) {
      return i < source_.size() && is_decimal(source_[i]);
    };
    std::size_t end = digits_end(at_);
    bool is_float = false;
    if (end < source_.size() && source_[end] == '.' && is_digit_at(end + 1)) {
      end = digits_end(end + 1);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (is_digit_at(exponent)) return digits_end(exponent);
    }
    return is_float ? end : at_;
  }

  void lex_number() {
    if (const std::size_t end = float_end(); end > at_) {
      const std::string text = without_underscores(source_.substr(at_, end - at_));
      add(TokenKind::kFloat, text, Value::number(std::strtod(text.c_str(), nullptr)));
      return skip(end - at_);
    }
    int base = 10;
    if (source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char letter = static_cast<char>(source_[at_ + 1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    }
    std::size_t from = base == 10 ? at_ : at_ + 2;
    std::size_t end = digits_end(from, base);
    if (base != 10 && end == from) {  // "0x" alone is 0 and a name
      base = 10;
      from = at_;
      end = at_ + 1;
    }
    if (base == 10 && source_[at_] == '0') {  // 012 is 0 and 12
      end = at_;
      while (end < source_.size() &&
             (source_[end] == '0' || (source_[end] == '_' && source_.substr(end + 1, 1) == "0")))
        ++end;
    }
    const std::string text = without_underscores(source_.substr(from, end - from));
    std::int64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number, base).ec != std::errc()) {
      error("the integer " + text + " does not fit into 64 bits");
    }
    add(TokenKind::kInteger, text, Value::integer(number));
    skip(end - at_);
  }

  void lex_string(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) error("a string has no closing quote");
    add(TokenKind::kString, unescape(source_.substr(at_ + 1, end - at_ - 1)));
    skip(end + 1 - at_);
  }

  std::string unescape(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char c = text[++i];  // a character follows, since the closing quote is not escaped
      constexpr std::string_view kNames = "abfnrtv\\'\"", kStandFor = "\a\b\f\n\r\t\v\\'\"";
      if (const std::size_t named = kNames.find(c); named != kNames.npos) {
        out += kStandFor[named];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code(out, text.substr(i + 1, digits), digits);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        const std::string_view octal = text.substr(i, 3);
        std::uint32_t point = 0;
        const char* end = std::from_chars(octal.data(), octal.data() + octal.size(), point, 8).ptr;
        i += static_cast<std::size_t>(end - octal.data()) - 1;
        append_utf8(out, point);
      } else if (c == 'N') {
        error("\\N{...} in a string is not supported");
      } else if (c != '\n') {  // a backslash before a line end joins the lines
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void append_code(std::string& out, std::string_view hex, std::size_t digits) {
    std::uint32_t point = 0;
    const auto result = std::from_chars(hex.data(), hex.data() + hex.size(), point, 16);
    if (hex.size() != digits || result.ptr != hex.data() + digits || point > 0x10FFFF) {
      error("invalid \\x, \\u or \\U in a string");
    }
    if (point >= 0xD800 && point <= 0xDFFF) error("single surrogate in a string");
    append_utf8(out, point);
  }

  const std::string source_;
  std::size_t at_ = 0;
  std::size_t counted_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalize(source)).run();
}

}  // namespace protean::jinja
