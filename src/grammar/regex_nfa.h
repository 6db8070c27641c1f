#pragma once

#include <vector>

#include "grammar/automaton.h"
#include "grammar/code_points.h"
#include "grammar/language.h"

namespace protean::grammar {

// The syntax tree of a pattern.
struct RegexNode {
  enum class Kind { kAlternatives, kSequence, kRepeat, kCharacter, kTextBegin, kTextEnd };
  Kind kind = Kind::kSequence;
  std::vector<RegexNode> parts;
  Loop loop;                  // for kRepeat
  CharacterClass characters;  // for kCharacter
};

// Returns the texts that the pattern matches, or if `search` those that hold a match. Fails with
// kExhausted beyond Language::kMaxStates.
Result<Language> regex_language(const RegexNode& node, bool search);

}  // namespace protean::grammar
