#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/automaton.h"

namespace protean::grammar {

// Emits the texts of a grammar in GBNF. Rules may refer to each other without bound: a reference at
// the end of a rule takes no stack, and others may nest until the stack has StackSets::kOpenDepth
// frames, one for each and up to three for each {m,n}; beyond, only the alternatives with the
// shortest way to an end are left. Fails as parse_gbnf() does, and with kUnsupported if a rule
// refers to itself before it has read a character.
Status emit_gbnf(AutomatonBuilder& builder, std::string_view text, StateId from, StateId to);

}  // namespace protean::grammar
