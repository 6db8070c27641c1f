#pragma once

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/automaton.h"

namespace protean {

// Runs an automaton by its definition: keeps each stack by itself and caches nothing.
class NaiveAutomaton {
 public:
  using Stack = std::vector<std::pair<grammar::StateId, std::uint32_t>>;  // the top is last
  using Stacks = std::set<Stack>;

  explicit NaiveAutomaton(const grammar::Automaton& automaton) : automaton_(&automaton) {}

  Stacks start() const;
  Stacks step(const Stacks& stacks, std::uint8_t byte) const;
  Stacks read(Stacks stacks, std::string_view text) const;
  static bool at_end(const Stacks& stacks) { return stacks.contains(Stack{}); }

 private:
  void reach(Stack stack, Stacks& seen) const;

  const grammar::Automaton* automaton_;
};

}  // namespace protean
