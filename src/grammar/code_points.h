#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"

namespace protean::grammar {

using CodePoint = std::int32_t;
constexpr CodePoint kLastCodePoint = 0x10ffff;

// Includes both ends.
struct CodePointRange {
  CodePoint first = 0;
  CodePoint last = 0;
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

// A set of characters: sorted ranges that neither touch nor overlap. No class holds surrogates.
class CharacterClass {
 public:
  CharacterClass() = default;
  explicit CharacterClass(std::vector<CodePointRange> ranges);
  static CharacterClass all();
  static CharacterClass of(CodePoint character) { return CharacterClass({{character, character}}); }

  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool contains(CodePoint character) const;
  CharacterClass complement() const;
  CharacterClass unite(const CharacterClass& other) const;
  CharacterClass intersect(const CharacterClass& other) const;
  friend bool operator==(const CharacterClass&, const CharacterClass&) = default;

 private:
  std::vector<CodePointRange> ranges_;
};

// How characters are written: unchanged, or as within the quotes of a JSON string.
enum class Spelling { kPlain, kJsonString };

// Returns what JSON.stringify makes of a character: unchanged, as in \n, or as in \u001f.
std::string json_spelling(CodePoint character);
std::string json_quoted(std::string_view utf8);

// Returns the characters of valid UTF-8.
std::vector<CodePoint> code_points(std::string_view utf8);

// Emits edges from `from` to `to` for one character of the class. Within a JSON string a character
// is written as json_spelling() does, with hex digits in either case.
void emit_character(AutomatonBuilder& builder, StateId from, const CharacterClass& characters,
                    Spelling spelling, StateId to);

// Emits edges for one character of a JSON string in any spelling, with escapes of every kind.
// Surrogates are written in pairs only.
void emit_any_json_character(AutomatonBuilder& builder, StateId from, StateId to);

}  // namespace protean::grammar
