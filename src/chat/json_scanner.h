#pragma once

#include <cstdint>
#include <string>

namespace protean {

// The result of reading one byte.
enum class ScanStep : std::uint8_t {
  kMore,        // read; the value continues
  kDone,        // read; the value ends with this byte
  kDoneBefore,  // not read: the value, a number, ended before this byte
  kFail,        // not read: this is not JSON
};

inline bool is_json_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// Checks one JSON value (RFC 8259) a byte at a time, in constant time per byte and one byte of
// memory per level of nesting. Does not check UTF-8, and does not keep the value.
class JsonScanner {
 public:
  ScanStep step(char c);
  // True inside a string, except after a backslash.
  bool in_string() const { return state_ == State::kString; }

 private:
  enum class State : std::uint8_t {
    kValue,
    kFirstKey,
    kKey,
    kColon,
    kFirstElement,
    kAfterValue,
    kString,
    kEscape,
    kHexDigits,
    kLiteral,
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponentSign,
    kExponentFirst,
    kExponent,
    kEnded,
  };
  ScanStep begin_value(char c);
  ScanStep open(char bracket, State inside);
  ScanStep close(char bracket);
  ScanStep end_value(ScanStep done);
  ScanStep after_value(char c);
  ScanStep string(char c);
  ScanStep literal(char c);
  ScanStep number(char c);
  ScanStep go(State state) {
    state_ = state;
    return ScanStep::kMore;
  }

  State state_ = State::kValue;
  bool key_ = false;            // the string is a key
  int digits_left_ = 0;         // digits of \uXXXX to come
  const char* rest_ = nullptr;  // what is left of true, false or null
  std::string open_;            // open brackets, outermost first
};

// Decodes the text between a JSON string's quotes, a byte at a time.
class JsonStringDecoder {
 public:
  // Appends complete characters to `out`. Returns kDone at the closing quote, and kFail for unknown
  // escapes and single surrogates. Accepts control characters that JSON wants escaped.
  ScanStep step(char c, std::string& out);

 private:
  ScanStep escape(char c, std::string& out);
  ScanStep hex_digit(char c, std::string& out);

  enum class State : std::uint8_t { kPlain, kEscape, kHexDigits, kLowBackslash, kLowU };
  State state_ = State::kPlain;
  int digits_left_ = 0;
  std::uint32_t unit_ = 0;
  std::uint32_t high_ = 0;  // the first half of a surrogate pair, or 0
};

}  // namespace protean
