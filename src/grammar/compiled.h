#pragma once

#include <cstdint>
#include <memory>

#include "grammar/automaton.h"
#include "grammar/grammar.h"

namespace protean {

struct Grammar::Automaton {
  std::shared_ptr<const grammar::Automaton> automaton;
  std::uint64_t hash = 0;
};

}  // namespace protean
