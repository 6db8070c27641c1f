#pragma once

#include <bitset>
#include <optional>

#include "grammar/automaton.h"

namespace protean::grammar {

using ByteSet = std::bitset<256>;

// The part of an automaton that texts of these bytes alone can use: its states are reached from
// the start, and the end can be reached from each of them. None where no such text is taken.
// Counts of loops are not looked at: see AutomatonBuilder::build().
std::optional<Automaton> trimmed(const Automaton& automaton, const ByteSet& bytes);

}  // namespace protean::grammar
