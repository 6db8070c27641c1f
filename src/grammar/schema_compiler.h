#pragma once

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"

namespace protean::grammar {

// Edges from `from` to `to` for the JSON texts a schema allows, as far as its header says.
Status emit_schema(AutomatonBuilder& builder, const JsonSchema& schema, StateId from, StateId to);
Status emit_tagged(AutomatonBuilder& builder, const TaggedArguments& arguments, StateId from,
                   StateId to);

}  // namespace protean::grammar
