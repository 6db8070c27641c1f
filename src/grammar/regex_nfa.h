#pragma once

#include <vector>

#include "grammar/automaton.h"
#include "grammar/code_points.h"
#include "grammar/language.h"

namespace protean::grammar {

// A pattern's tree.
struct RegexNode {
  enum class Kind { kAlternatives, kSequence, kRepeat, kCharacter, kTextBegin, kTextEnd };
  Kind kind = Kind::kSequence;
  std::vector<RegexNode> parts;
  Loop loop;                  // of a kRepeat
  CharacterClass characters;  // of a kCharacter
};

// The texts matched, or (search) those with a match somewhere. kExhausted when that takes more
// than Language::kMaxStates.
Result<Language> regex_language(const RegexNode& node, bool search);

}  // namespace protean::grammar
