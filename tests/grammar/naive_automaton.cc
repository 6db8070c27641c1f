#include "tests/grammar/naive_automaton.h"

#include <algorithm>

namespace protean {

using grammar::Move;

NaiveAutomaton::Stacks NaiveAutomaton::start() const {
  Stacks stacks;
  reach({{automaton_->start, 0}}, stacks);
  return stacks;
}

NaiveAutomaton::Stacks NaiveAutomaton::step(const Stacks& stacks, std::uint8_t byte) const {
  const std::uint8_t byte_class = automaton_->class_of[byte];
  Stacks next;
  for (const Stack& stack : stacks) {
    if (stack.empty()) {
      continue;
    }
    const grammar::StateId state = stack.back().first;
    for (std::uint32_t e = automaton_->edge_begin[state]; e < automaton_->edge_begin[state + 1];
         ++e) {
      const grammar::ByteEdge& edge = automaton_->edges[e];
      if (byte_class >= edge.first && byte_class <= edge.last) {
        Stack moved = stack;
        moved.back().first = edge.to;
        reach(std::move(moved), next);
      }
    }
  }
  return next;
}

NaiveAutomaton::Stacks NaiveAutomaton::read(Stacks stacks, std::string_view text) const {
  for (const char byte : text) {
    stacks = step(stacks, static_cast<std::uint8_t>(byte));
  }
  return stacks;
}

void NaiveAutomaton::reach(Stack stack, Stacks& seen) const {
  if (!seen.insert(stack).second || stack.empty()) {
    return;
  }
  const auto [state, count] = stack.back();
  if (automaton_->is_final[state] != 0) {
    reach(Stack(stack.begin(), stack.end() - 1), seen);
  }
  for (std::uint32_t m = automaton_->move_begin[state]; m < automaton_->move_begin[state + 1];
       ++m) {
    const Move& move = automaton_->moves[m];
    Stack next = stack;
    next.back().first = move.to;
    if (move.kind == Move::Kind::kCall) {
      next.back().first = move.argument;
      next.emplace_back(move.to, 0);
    } else if (move.kind == Move::Kind::kCount) {
      const grammar::Loop& loop = automaton_->loops[move.argument];
      const bool bounded = loop.most != grammar::kNoLimit;
      if (bounded && count >= loop.most) {
        continue;
      }
      next.back().second = bounded ? count + 1 : std::min(count + 1, loop.least);
    } else if (move.kind == Move::Kind::kLeave) {
      if (count < automaton_->loops[move.argument].least) {
        continue;
      }
      next.back().second = 0;
    }
    reach(std::move(next), seen);
  }
}

}  // namespace protean
