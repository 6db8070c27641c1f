#pragma once

#include <bitset>
#include <optional>

#include "grammar/automaton.h"

namespace protean::grammar {

using ByteSet = std::bitset<256>;

// Returns the part of an automaton that texts of these bytes can use: its states can be reached
// from the start, and the end from each of them. Returns none if no such text is accepted. Ignores
// the counts of loops; see AutomatonBuilder::build().
std::optional<Automaton> trimmed(const Automaton& automaton, const ByteSet& bytes);

}  // namespace protean::grammar
