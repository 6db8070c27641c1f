#include "grammar/code_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace protean::grammar {

namespace {

constexpr CodePoint kFirstSurrogate = 0xd800;
constexpr CodePoint kLastSurrogate = 0xdfff;

// Returns the ranges sorted, merged and without surrogates.
std::vector<CodePointRange> normalised(std::vector<CodePointRange> ranges) {
  std::vector<CodePointRange> parts;
  for (const CodePointRange& range : ranges) {
    const CodePoint low_end = std::min(range.last, kFirstSurrogate - 1);
    const CodePoint high_begin = std::max(range.first, kLastSurrogate + 1);
    if (range.first <= low_end) {
      parts.push_back({range.first, low_end});
    }
    if (high_begin <= std::min(range.last, kLastCodePoint)) {
      parts.push_back({high_begin, std::min(range.last, kLastCodePoint)});
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<CodePointRange> merged;
  for (const CodePointRange& part : parts) {
    if (!merged.empty() && part.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, part.last);
    } else {
      merged.push_back(part);
    }
  }
  return merged;
}

// The UTF-8 of the first and last character of a range whose characters have the same length.
struct Utf8Range {
  std::array<std::uint8_t, 4> low{};
  std::array<std::uint8_t, 4> high{};
  int length = 0;
};

// Emits UTF-8. Chains of any continuation bytes that end in `to` are shared.
class Utf8Emitter {
 public:
  Utf8Emitter(AutomatonBuilder& builder, StateId to) : builder_(&builder) { any_[0] = to; }

  void emit(StateId from, CodePointRange range) {
    constexpr std::array<CodePoint, 4> kLastOfLength{0x7f, 0x7ff, 0xffff, kLastCodePoint};
    for (int length = 1; length <= 4; ++length) {
      const CodePoint begin = length == 1 ? 0 : kLastOfLength[length - 2] + 1;
      const CodePoint first = std::max(range.first, begin);
      const CodePoint last = std::min(range.last, kLastOfLength[length - 1]);
      if (first <= last) {
        Utf8Range bytes{.length = length};
        encode(first, length, bytes.low);
        encode(last, length, bytes.high);
        emit(from, bytes, 0);
      }
    }
  }

 private:
  static void encode(CodePoint character, int length, std::array<std::uint8_t, 4>& bytes) {
    constexpr std::array<std::uint8_t, 4> kLead{0x00, 0xc0, 0xe0, 0xf0};
    for (int i = length - 1; i > 0; --i) {
      bytes[i] = static_cast<std::uint8_t>(0x80 | (character & 0x3f));
      character >>= 6;
    }
    bytes[0] = static_cast<std::uint8_t>(kLead[length - 1] | character);
  }

  // Returns a state from which any `more` continuation bytes lead to the target.
  StateId any(int more) {
    if (more > 0 && any_[more] == 0) {
      any_[more] = builder_->state();
      builder_->bytes(any_[more], 0x80, 0xbf, any(more - 1));
    }
    return any_[more];
  }

  void emit(StateId from, const Utf8Range& range, int index) {
    const int more = range.length - index - 1;
    const std::uint8_t low = range.low[index];
    const std::uint8_t high = range.high[index];
    const auto tail_is = [&](const std::array<std::uint8_t, 4>& bytes, std::uint8_t value) {
      return std::all_of(bytes.begin() + index + 1, bytes.begin() + range.length,
                         [value](std::uint8_t byte) { return byte == value; });
    };
    const bool low_whole = tail_is(range.low, 0x80);
    const bool high_whole = tail_is(range.high, 0xbf);
    if (low_whole && high_whole) {
      builder_->bytes(from, low, high, any(more));
      return;
    }
    if (low == high) {
      step(from, low, range, index);
      return;
    }
    if (!low_whole) {
      Utf8Range part = range;
      std::fill(part.high.begin() + index + 1, part.high.end(), std::uint8_t{0xbf});
      step(from, low, part, index);
    }
    if (!high_whole) {
      Utf8Range part = range;
      std::fill(part.low.begin() + index + 1, part.low.end(), std::uint8_t{0x80});
      step(from, high, part, index);
    }
    const int whole_low = low + (low_whole ? 0 : 1);
    const int whole_high = high - (high_whole ? 0 : 1);
    if (whole_low <= whole_high) {
      builder_->bytes(from, static_cast<std::uint8_t>(whole_low),
                      static_cast<std::uint8_t>(whole_high), any(more));
    }
  }

  void step(StateId from, std::uint8_t byte, const Utf8Range& range, int index) {
    const StateId next = builder_->state();
    builder_->bytes(from, byte, byte, next);
    emit(next, range, index + 1);
  }

  AutomatonBuilder* builder_;
  std::array<StateId, 4> any_{};
};

constexpr bool must_escape(CodePoint character) {
  return character < 0x20 || character == '"' || character == '\\';
}

void hex_digit(AutomatonBuilder& builder, StateId from, StateId to) {
  builder.bytes(from, '0', '9', to);
  builder.bytes(from, 'A', 'F', to);
  builder.bytes(from, 'a', 'f', to);
}

// Returns a state from which `digits` hex digits lead to `to`.
StateId hex_chain(AutomatonBuilder& builder, int digits, StateId to) {
  for (; digits > 0; --digits) {
    const StateId from = builder.state();
    hex_digit(builder, from, to);
    to = from;
  }
  return to;
}

// Emits what may follow "\u": four digits that are no surrogate, or a pair of surrogates.
void emit_unicode_escape(AutomatonBuilder& builder, StateId from, StateId to) {
  const StateId three = hex_chain(builder, 3, to);
  const StateId two = hex_chain(builder, 2, to);
  builder.bytes(from, '0', '9', three);
  for (const char upper : {'A', 'B', 'C', 'E', 'F'}) {
    const auto byte = static_cast<std::uint8_t>(upper);
    builder.bytes(from, byte, byte, three);
    builder.bytes(from, byte + 0x20, byte + 0x20, three);
  }
  const StateId after_d = builder.state();
  builder.bytes(from, 'D', 'D', after_d);
  builder.bytes(from, 'd', 'd', after_d);
  builder.bytes(after_d, '0', '7', two);
  const StateId second = builder.state();  // after the first surrogate
  const StateId first_tail = hex_chain(builder, 2, second);
  builder.bytes(after_d, '8', '9', first_tail);
  builder.bytes(after_d, 'A', 'B', first_tail);
  builder.bytes(after_d, 'a', 'b', first_tail);
  const StateId second_d = builder.state();
  builder.literal(second, "\\ud", second_d);
  builder.literal(second, "\\uD", second_d);
  builder.bytes(second_d, 'C', 'F', two);
  builder.bytes(second_d, 'c', 'f', two);
}

}  // namespace

CharacterClass::CharacterClass(std::vector<CodePointRange> ranges)
    : ranges_(normalised(std::move(ranges))) {}

CharacterClass CharacterClass::all() {
  return CharacterClass({{0, kLastCodePoint}});
}

bool CharacterClass::contains(CodePoint character) const {
  const auto it = std::upper_bound(
      ranges_.begin(), ranges_.end(), character,
      [](CodePoint value, const CodePointRange& range) { return value < range.first; });
  return it != ranges_.begin() && character <= std::prev(it)->last;
}

CharacterClass CharacterClass::complement() const {
  std::vector<CodePointRange> gaps;
  CodePoint next = 0;
  for (const CodePointRange& range : ranges_) {
    if (next < range.first) {
      gaps.push_back({next, range.first - 1});
    }
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) {
    gaps.push_back({next, kLastCodePoint});
  }
  return CharacterClass(std::move(gaps));
}

CharacterClass CharacterClass::unite(const CharacterClass& other) const {
  std::vector<CodePointRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CharacterClass(std::move(both));
}

CharacterClass CharacterClass::intersect(const CharacterClass& other) const {
  std::vector<CodePointRange> both;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const CodePointRange& a = ranges_[i];
    const CodePointRange& b = other.ranges_[j];
    if (std::max(a.first, b.first) <= std::min(a.last, b.last)) {
      both.push_back({std::max(a.first, b.first), std::min(a.last, b.last)});
    }
    (a.last < b.last ? i : j) += 1;
  }
  return CharacterClass(std::move(both));
}

std::string json_spelling(CodePoint character) {
  switch (character) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  if (character < 0x20) {
    return fmt::format("\\u{:04x}", character);
  }
  std::string utf8;
  append_utf8(utf8, character);
  return utf8;
}

std::string json_quoted(std::string_view utf8) {
  std::string quoted = "\"";
  for (const CodePoint character : code_points(utf8)) {
    quoted += json_spelling(character);
  }
  return quoted + '"';
}

std::vector<CodePoint> code_points(std::string_view utf8) {
  std::vector<CodePoint> points;
  while (!utf8.empty()) {
    const Utf8Step step = utf8_step(utf8);
    points.push_back(step.kind == Utf8Step::Kind::kCharacter ? step.code_point : 0xfffd);
    utf8.remove_prefix(static_cast<std::size_t>(step.bytes));
  }
  return points;
}

void emit_character(AutomatonBuilder& builder, StateId from, const CharacterClass& characters,
                    Spelling spelling, StateId to) {
  Utf8Emitter emitter(builder, to);
  if (spelling == Spelling::kPlain) {
    for (const CodePointRange& range : characters.ranges()) {
      emitter.emit(from, range);
    }
    return;
  }
  static const CharacterClass kEscaped({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}});
  const CharacterClass as_they_are = characters.intersect(kEscaped.complement());
  for (const CodePointRange& range : as_they_are.ranges()) {
    emitter.emit(from, range);
  }
  const CharacterClass escaped = characters.intersect(kEscaped);
  if (escaped.empty()) {
    return;
  }
  const StateId backslash = builder.state();
  builder.bytes(from, '\\', '\\', backslash);
  for (const CodePointRange& range : escaped.ranges()) {
    for (CodePoint character = range.first; character <= range.last; ++character) {
      check(must_escape(character), "only what must be escaped is");
      const std::string text = json_spelling(character).substr(1);
      builder.literal(backslash, text, to);
      if (text.back() >= 'a' && text.size() > 1) {
        builder.literal(backslash, text.substr(0, 4) + static_cast<char>(text.back() - 0x20), to);
      }
    }
  }
}

void emit_any_json_character(AutomatonBuilder& builder, StateId from, StateId to) {
  static const CharacterClass kUnescaped({{0x20, 0x21}, {0x23, 0x5b}, {0x5d, kLastCodePoint}});
  emit_character(builder, from, kUnescaped, Spelling::kPlain, to);
  const StateId backslash = builder.state();
  builder.bytes(from, '\\', '\\', backslash);
  for (const char escape : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) {
    builder.bytes(backslash, static_cast<std::uint8_t>(escape), static_cast<std::uint8_t>(escape),
                  to);
  }
  const StateId unicode = builder.state();
  builder.bytes(backslash, 'u', 'u', unicode);
  emit_unicode_escape(builder, unicode, to);
}

}  // namespace protean::grammar
