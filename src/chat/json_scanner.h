#pragma once

#include <cstdint>
#include <string>

namespace protean {

// What a byte meant to a reader of bytes.
enum class ScanStep : std::uint8_t {
  kMore,        // taken; the value goes on
  kDone,        // taken; the value ends with it
  kDoneBefore,  // not taken: the value, a number, ended before it
  kFail,        // not taken: no such JSON
};

inline bool is_json_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// Checks one JSON value (RFC 8259) a byte at a time, in constant time per byte and one byte of
// memory per level of nesting. Does not check UTF-8, and does not keep the value.
class JsonScanner {
 public:
  ScanStep step(char c);
  // Inside a string and not behind a backslash.
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
  bool key_ = false;            // the string is a member's name
  int digits_left_ = 0;         // of \uXXXX
  const char* rest_ = nullptr;  // of true, false or null
  std::string open_;            // brackets, outermost first
};

// Takes the text between a JSON string's quotes and gives what it means, a character at a time.
class JsonStringDecoder {
 public:
  // Appends what is complete to `out`; kDone at the closing quote. Escaped half surrogates and
  // unknown escapes fail; control characters that should be escaped are taken as they are.
  ScanStep step(char c, std::string& out);

 private:
  ScanStep escape(char c, std::string& out);
  ScanStep hex_digit(char c, std::string& out);

  enum class State : std::uint8_t { kPlain, kEscape, kHexDigits, kLowBackslash, kLowU };
  State state_ = State::kPlain;
  int digits_left_ = 0;
  std::uint32_t unit_ = 0;
  std::uint32_t high_ = 0;  // a first surrogate, waiting for its second
};

}  // namespace protean
