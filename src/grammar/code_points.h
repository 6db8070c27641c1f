#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"

namespace protean::grammar {

using CodePoint = std::int32_t;
constexpr CodePoint kLastCodePoint = 0x10ffff;

// Both ends are in it.
struct CodePointRange {
  CodePoint first = 0;
  CodePoint last = 0;
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

// A set of characters: sorted ranges that neither touch nor overlap. Surrogates are in none.
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

// How characters are written: as they are, or between the quotes of a JSON string.
enum class Spelling { kPlain, kJsonString };

// What JSON.stringify makes of a character: as it is, \n and its like, or \u00xx.
std::string json_spelling(CodePoint character);
std::string json_quoted(std::string_view utf8);

// The characters of valid UTF-8.
std::vector<CodePoint> code_points(std::string_view utf8);

// Edges for one character of the class from `from` to `to`. Within a JSON string a character has
// its json_spelling only (hex digits in either case).
void emit_character(AutomatonBuilder& builder, StateId from, const CharacterClass& characters,
                    Spelling spelling, StateId to);

// Edges for one character of a JSON string in any spelling: escapes of every kind, surrogates in
// pairs only.
void emit_any_json_character(AutomatonBuilder& builder, StateId from, StateId to);

}  // namespace protean::grammar
