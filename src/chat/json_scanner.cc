#include "chat/json_scanner.h"

#include <string_view>

#include "jinja/unicode.h"

namespace protean {
namespace {

constexpr std::size_t kMaxCallDepth = 512;  // no tool needs deeper arguments

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

ScanStep JsonScanner::step(char c) {
  switch (state_) {
    case State::kString:
    case State::kEscape:
    case State::kHexDigits:
      return string(c);
    case State::kLiteral:
      return literal(c);
    case State::kMinus:
    case State::kZero:
    case State::kInteger:
    case State::kPoint:
    case State::kFraction:
    case State::kExponentSign:
    case State::kExponentFirst:
    case State::kExponent:
      return number(c);
    default:
      break;
  }
  if (is_json_space(c)) return state_ == State::kEnded ? ScanStep::kFail : ScanStep::kMore;
  switch (state_) {
    case State::kValue:
      return begin_value(c);
    case State::kFirstElement:
      return c == ']' ? close('[') : begin_value(c);
    case State::kFirstKey:
      if (c == '}') return close('{');
      [[fallthrough]];
    case State::kKey:
      key_ = true;
      return c == '"' ? go(State::kString) : ScanStep::kFail;
    case State::kColon:
      return c == ':' ? go(State::kValue) : ScanStep::kFail;
    case State::kAfterValue:
      return after_value(c);
    default:
      return ScanStep::kFail;
  }
}

ScanStep JsonScanner::begin_value(char c) {
  switch (c) {
    case '{':
      return open(c, State::kFirstKey);
    case '[':
      return open(c, State::kFirstElement);
    case '"':
      key_ = false;
      return go(State::kString);
    case '-':
      return go(State::kMinus);
    case '0':
      return go(State::kZero);
    case 't':
      rest_ = "rue";
      return go(State::kLiteral);
    case 'f':
      rest_ = "alse";
      return go(State::kLiteral);
    case 'n':
      rest_ = "ull";
      return go(State::kLiteral);
    default:
      return is_digit(c) ? go(State::kInteger) : ScanStep::kFail;
  }
}

ScanStep JsonScanner::open(char bracket, State inside) {
  if (open_.size() == kMaxCallDepth) return ScanStep::kFail;
  open_ += bracket;
  return go(inside);
}

ScanStep JsonScanner::close(char bracket) {
  if (open_.empty() || open_.back() != bracket) return ScanStep::kFail;
  open_.pop_back();
  return end_value(ScanStep::kDone);
}

ScanStep JsonScanner::end_value(ScanStep done) {
  state_ = open_.empty() ? State::kEnded : State::kAfterValue;
  return open_.empty() ? done : ScanStep::kMore;
}

ScanStep JsonScanner::after_value(char c) {
  if (c == '}') return close('{');
  if (c == ']') return close('[');
  if (c != ',') return ScanStep::kFail;
  return go(open_.back() == '{' ? State::kKey : State::kValue);
}

ScanStep JsonScanner::string(char c) {
  if (state_ == State::kEscape) {
    if (c == 'u') {
      digits_left_ = 4;
      return go(State::kHexDigits);
    }
    const bool known = std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    return known ? go(State::kString) : ScanStep::kFail;
  }
  if (state_ == State::kHexDigits) {
    if (hex_value(c) < 0) return ScanStep::kFail;
    return --digits_left_ == 0 ? go(State::kString) : ScanStep::kMore;
  }
  if (c == '\\') return go(State::kEscape);
  if (c == '"') return key_ ? go(State::kColon) : end_value(ScanStep::kDone);
  return static_cast<unsigned char>(c) < 0x20 ? ScanStep::kFail : ScanStep::kMore;
}

ScanStep JsonScanner::literal(char c) {
  if (c != *rest_) return ScanStep::kFail;
  return *++rest_ == '\0' ? end_value(ScanStep::kDone) : ScanStep::kMore;
}

ScanStep JsonScanner::number(char c) {
  const bool digit = is_digit(c);
  switch (state_) {
    case State::kMinus:
      if (!digit) return ScanStep::kFail;
      return go(c == '0' ? State::kZero : State::kInteger);
    case State::kPoint:
      return digit ? go(State::kFraction) : ScanStep::kFail;
    case State::kExponentSign:
      if (c == '+' || c == '-') return go(State::kExponentFirst);
      [[fallthrough]];
    case State::kExponentFirst:
      return digit ? go(State::kExponent) : ScanStep::kFail;
    default:
      break;
  }
  if (digit && state_ != State::kZero) return ScanStep::kMore;
  const bool whole = state_ == State::kZero || state_ == State::kInteger;
  if (c == '.' && whole) return go(State::kPoint);
  if ((c == 'e' || c == 'E') && state_ != State::kExponent) return go(State::kExponentSign);
  const ScanStep ended = end_value(ScanStep::kDoneBefore);
  return ended == ScanStep::kDoneBefore ? ended : step(c);
}

ScanStep JsonStringDecoder::step(char c, std::string& out) {
  switch (state_) {
    case State::kPlain:
      if (c == '"') return ScanStep::kDone;
      if (c == '\\') {
        state_ = State::kEscape;
      } else {
        out += c;
      }
      return ScanStep::kMore;
    case State::kEscape:
      return escape(c, out);
    case State::kHexDigits:
      return hex_digit(c, out);
    case State::kLowBackslash:
      state_ = State::kLowU;
      return c == '\\' ? ScanStep::kMore : ScanStep::kFail;
    case State::kLowU:
      return c == 'u' ? escape(c, out) : ScanStep::kFail;
  }
  return ScanStep::kFail;
}

ScanStep JsonStringDecoder::escape(char c, std::string& out) {
  if (c == 'u') {
    state_ = State::kHexDigits;
    digits_left_ = 4;
    unit_ = 0;
    return ScanStep::kMore;
  }
  constexpr std::string_view kEscapes = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const std::size_t at = kEscapes.find(c);
  if (at == std::string_view::npos) return ScanStep::kFail;
  out += kMeanings[at];
  state_ = State::kPlain;
  return ScanStep::kMore;
}

ScanStep JsonStringDecoder::hex_digit(char c, std::string& out) {
  const int value = hex_value(c);
  if (value < 0) return ScanStep::kFail;
  unit_ = unit_ * 16 + static_cast<std::uint32_t>(value);
  if (--digits_left_ > 0) return ScanStep::kMore;
  const bool low = unit_ >= 0xdc00 && unit_ <= 0xdfff;
  if (low != (high_ != 0)) return ScanStep::kFail;
  if (unit_ >= 0xd800 && unit_ <= 0xdbff) {
    high_ = unit_;
    state_ = State::kLowBackslash;
    return ScanStep::kMore;
  }
  jinja::append_utf8(out, low ? 0x10000 + ((high_ - 0xd800) << 10) + (unit_ - 0xdc00) : unit_);
  high_ = 0;
  state_ = State::kPlain;
  return ScanStep::kMore;
}

}  // namespace protean
