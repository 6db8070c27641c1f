#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/code_points.h"

namespace protean::grammar {

// Where something begins in a grammar's text, both from 1. Columns count characters.
struct TextPlace {
  int line = 1;
  int column = 1;
};

// The syntax tree of a right-hand side.
struct GbnfNode {
  enum class Kind { kAlternatives, kSequence, kRepeat, kText, kCharacter, kReference };
  Kind kind = Kind::kSequence;
  std::vector<GbnfNode> parts;  // one, for kRepeat
  Loop loop;                    // for kRepeat
  std::string text;             // for kText, not empty
  CharacterClass characters;    // for kCharacter
  std::size_t rule = 0;         // for kReference: its index in the grammar
  TextPlace place;
};

struct GbnfRule {
  std::string name;
  GbnfNode body;
  TextPlace place;
};

struct GbnfSyntax {
  std::vector<GbnfRule> rules;
  std::size_t root = 0;
};

// Reads a grammar in GBNF, llama.cpp's form of BNF. Fails with kInvalidArgument if it is malformed,
// names a rule that it does not define, or defines one twice or no rule "root", with kUnsupported
// for tokens (<...>), and with kExhausted if it is too large. Errors begin with the place: "line 2,
// column 7: ...".
Result<GbnfSyntax> parse_gbnf(std::string_view text);

// Returns an error at a place of a grammar.
Error gbnf_error(ErrorCode code, TextPlace place, std::string_view what);

}  // namespace protean::grammar
