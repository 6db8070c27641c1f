#include "jinja/text_format.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_search.h"
#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 10'000;
constexpr std::int64_t kMaxPrecision = 300;

// One conversion of a % format: %[(key)][flags][width][.precision]letter.
struct Conversion {
  bool left = false, plus = false, space = false, zero = false, alternate = false;
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char letter = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Value& format, const Value& values)
      : runtime_(runtime), whole_format_(format), format_(format.as_text()), values_(values) {
    is_tuple_ = values.is(Type::kSequence) && values.as_sequence().kind == Sequence::Kind::kTuple;
  }

  MarkedText run() {
    while (at_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', at_), format_.size());
      runtime_.append(out_, whole_format_.part(format_.substr(at_, percent - at_)));
      at_ = percent + 1;
      if (percent < format_.size()) convert();
      runtime_.spend_steps(1);
      runtime_.check_output(out_.text.size());
    }
    const bool takes_all = values_.is(Type::kDict) || values_.is_undefined() ||
                           (values_.is(Type::kSequence) && !is_tuple_);
    if (!takes_all && next_ < (is_tuple_ ? values_.as_sequence().items.size() : 1)) {
      fail("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  char peek() const { return at_ < format_.size() ? format_[at_] : '\0'; }

  Value next_value() {
    if (keyed_) return key_value_;
    if (is_tuple_ && next_ < values_.as_sequence().items.size()) {
      return values_.as_sequence().items[next_++];
    }
    if (is_tuple_ || next_ > 0) fail("not enough arguments for format string");
    ++next_;
    return values_;
  }

  void read_key() {
    keyed_ = peek() == '(';
    if (!keyed_) return;
    const std::size_t close = format_.find(')', at_);
    if (close == format_.npos) fail("incomplete format key");
    if (!values_.is(Type::kDict)) fail("format requires a mapping");
    const std::string_view key = format_.substr(at_ + 1, close - at_ - 1);
    const Value* found = values_.as_dict().find(key);
    if (found == nullptr) fail("the format needs the key '{}', which the mapping lacks", key);
    key_value_ = *found;
    at_ = close + 1;
  }

  std::int64_t read_number(std::int64_t most) {
    std::int64_t number = 0;
    if (peek() == '*') {
      ++at_;
      number = to_index(next_value(), "* wants int");
    }
    for (; peek() >= '0' && peek() <= '9' && number <= most; ++at_) {
      number = number * 10 + (peek() - '0');
    }
    if (number > most || number < -most) {
      refuse("a format width or precision above {} is not supported", most);
    }
    return number;
  }

  Conversion read_conversion() {
    Conversion c;
    for (;; ++at_) {
      const char flag = peek();
      if (flag == '-') {
        c.left = true;
      } else if (flag == '+') {
        c.plus = true;
      } else if (flag == ' ') {
        c.space = true;
      } else if (flag == '0') {
        c.zero = true;
      } else if (flag == '#') {
        c.alternate = true;
      } else {
        break;
      }
    }
    c.width = read_number(kMaxWidth);
    if (c.width < 0) {
      c.left = true;
      c.width = -c.width;
    }
    if (peek() == '.') {
      ++at_;
      c.precision = std::max<std::int64_t>(0, read_number(kMaxPrecision));
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    if (at_ >= format_.size()) fail("incomplete format");
    c.letter = format_[at_++];
    return c;
  }

  void convert() {
    if (peek() == '%') {
      out_.text += '%';
      ++at_;
      return;
    }
    read_key();
    const Conversion c = read_conversion();
    constexpr std::string_view kFloats = "eEfFgG", kIntegers = "diuoxX";
    if (c.letter == '%') {
      out_.text += '%';
    } else if (c.letter == 's' && c.width == 0 && c.precision < 0) {
      write_text(runtime_, next_value(), out_);
    } else if (c.letter == 's' || c.letter == 'r' || c.letter == 'c') {
      put(c, "", text_of_value(c, next_value()));
    } else if (kFloats.find(c.letter) != kFloats.npos) {
      put_float(c, next_value());
    } else if (kIntegers.find(c.letter) != kIntegers.npos) {
      put_integer(c, next_value());
    } else {
      refuse("the format conversion %{} is not supported", c.letter);
    }
  }

  std::string text_of_value(const Conversion& c, const Value& value) {
    std::string text;
    if (c.letter == 'r') {
      write_repr(runtime_, value, text);
    } else if (c.letter == 's') {
      write_text(runtime_, value, text);
    } else if (value.is_string() && count_characters(value.as_text()) == 1) {
      text = value.as_text();
    } else {
      const std::int64_t point = to_index(value, "%c requires int or char");
      if (point < 0 || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) {
        fail("%c arg is not a character");
      }
      append_utf8(text, static_cast<char32_t>(point));
    }
    if (c.precision >= 0)
      text.resize(character_offset(text, static_cast<std::size_t>(c.precision)));
    return text;
  }

  static std::string_view sign(const Conversion& c, bool negative) {
    return negative ? "-" : c.plus ? "+" : c.space ? " " : "";
  }

  void put_float(const Conversion& c, const Value& value) {
    if (!value.is_number()) fail("must be real number, not {}", type_name(value));
    const double number = value.as_number();
    const char pattern[] = {'%',
                            c.alternate ? '#' : '.',
                            c.alternate ? '.' : '*',
                            c.alternate ? '*' : c.letter,
                            c.alternate ? c.letter : '\0',
                            '\0'};
    const int precision = c.precision < 0 ? 6 : static_cast<int>(c.precision);
    char text[1024];
    std::snprintf(text, sizeof text, pattern, precision, std::fabs(number));
    put(c, sign(c, std::signbit(number) && !std::isnan(number)), text, std::isfinite(number));
  }

  void put_integer(const Conversion& c, const Value& value) {
    if (value.is_undefined()) fail_undefined(value);
    const bool decimal = c.letter == 'd' || c.letter == 'i' || c.letter == 'u';
    if (!value.is_integer() && !(decimal && value.is_number())) {
      fail("%{} format: a number is required, not {}", c.letter, type_name(value));
    }
    if (!value.is_integer() && !(std::fabs(value.as_number()) < 9e18)) {
      refuse("an integer beyond 64 bits is not supported");
    }
    const std::int64_t number =
        value.is_integer() ? value.as_integer() : static_cast<std::int64_t>(value.as_number());
    const auto magnitude =
        number < 0 ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
    std::string digits = c.letter == 'x'   ? fmt::format("{:x}", magnitude)
                         : c.letter == 'X' ? fmt::format("{:X}", magnitude)
                         : c.letter == 'o' ? fmt::format("{:o}", magnitude)
                                           : fmt::format("{}", magnitude);
    if (c.precision > static_cast<std::int64_t>(digits.size())) {
      digits.insert(0, static_cast<std::size_t>(c.precision) - digits.size(), '0');
    }
    std::string prefix(sign(c, number < 0));
    if (c.alternate && !decimal) prefix += std::string("0") + c.letter;
    put(c, prefix, digits, true);
  }

  // Pads to the width: spaces go before the prefix (a sign, "0x"), zeros after it.
  void put(const Conversion& c, std::string_view prefix, std::string_view text,
           bool number = false) {
    const auto size = static_cast<std::int64_t>(count_characters(prefix) + count_characters(text));
    const auto missing = static_cast<std::size_t>(std::max<std::int64_t>(0, c.width - size));
    const bool zeros = c.zero && number && !c.left;
    std::string& out = out_.text;
    if (!zeros && !c.left) out.append(missing, ' ');
    out += prefix;
    if (zeros) out.append(missing, '0');
    out += text;
    if (c.left) out.append(missing, ' ');
  }

  Runtime& runtime_;
  const Value& whole_format_;
  std::string_view format_;
  const Value& values_;
  bool is_tuple_ = false;
  bool keyed_ = false;
  Value key_value_;
  std::size_t at_ = 0;
  std::size_t next_ = 0;
  MarkedText out_;
};

// Returns the value of a field of a brace format: "", "0" or "name".
Value field_value(Runtime& runtime, std::string_view field, Call& call, std::size_t* automatic) {
  std::size_t index = 0;
  if (field.empty()) {
    index = (*automatic)++;
  } else if (std::from_chars(field.data(), field.data() + field.size(), index).ptr !=
             field.data() + field.size()) {
    for (const auto& [name, value] : call.named) {
      if (name == field) return value;
    }
    fail("format() has no argument named '{}'", field);
  }
  runtime.spend_steps(1 + call.named.size());
  if (index >= call.positional.size()) fail("format() has no argument {}", index);
  return call.positional[index];
}

}  // namespace

Value percent_format(Runtime& runtime, const Value& format, const Value& values) {
  if (format.is_markup()) refuse("% on safe text is not supported");
  return runtime.text(PercentFormatter(runtime, format, values).run());
}

Value brace_format(Runtime& runtime, const Value& format, Call& call) {
  if (format.is_markup()) refuse("format() of safe text is not supported");
  const std::string_view text = format.as_text();
  MarkedText out;
  std::size_t automatic = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool doubled = at + 1 < text.size() && text[at + 1] == c;
    if ((c != '{' && c != '}') || doubled) {
      runtime.append(out, format.part(text.substr(at, 1)));
      at += c == '{' || c == '}' ? 1 : 0;
    } else if (c == '}') {
      fail("single '}}' encountered in format string");
    } else {
      const std::size_t close = text.find('}', at);
      if (close == text.npos) fail("single '{{' encountered in format string");
      const std::string_view field = text.substr(at + 1, close - at - 1);
      if (field.find_first_of(":!{.[") != field.npos) {
        refuse("the format field '{{{}}}' is not supported", field);
      }
      write_text(runtime, field_value(runtime, field, call, &automatic), out);
      at = close;
    }
  }
  call.rest(0);  // Python ignores arguments that the format does not name
  for (auto& [name, value] : call.named) name = {};
  runtime.read(text);
  return runtime.text(std::move(out));
}

}  // namespace protean::jinja
