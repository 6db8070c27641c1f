#pragma once

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"

namespace protean::grammar {

// Emit edges from `from` to `to` for the texts of a source.
Status emit_schema(AutomatonBuilder& builder, const JsonSchema& schema, StateId from, StateId to);
Status emit_tagged(AutomatonBuilder& builder, const TaggedArguments& arguments, StateId from,
                   StateId to);

}  // namespace protean::grammar
