#include "grammar/automaton.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "grammar/trimmed.h"

namespace protean::grammar {

std::size_t Automaton::bytes() const {
  return sizeof(Automaton) +
         (edge_begin.capacity() + move_begin.capacity() + string_loop.capacity()) *
             sizeof(std::uint32_t) +
         edges.capacity() * sizeof(ByteEdge) + moves.capacity() * sizeof(Move) +
         loops.capacity() * sizeof(Loop) + is_final.capacity();
}

AutomatonBuilder::AutomatonBuilder() : nodes_(2) {}

StateId AutomatonBuilder::state() {
  if (nodes_.size() >= kMaxStates) {
    exhausted_ = true;
    return kBottomState;
  }
  nodes_.emplace_back();
  return static_cast<StateId>(nodes_.size() - 1);
}

std::uint32_t AutomatonBuilder::loop(std::uint32_t least, std::uint32_t most) {
  loops_.push_back({least, most});
  return static_cast<std::uint32_t>(loops_.size() - 1);
}

void AutomatonBuilder::bytes(StateId from, std::uint8_t first, std::uint8_t last, StateId to) {
  if (++edges_ > kMaxEdges) {
    exhausted_ = true;
    return;
  }
  nodes_[from].edges.push_back({first, last, to});
}

void AutomatonBuilder::literal(StateId from, std::string_view text, StateId to) {
  if (text.empty()) {
    go(from, to);
    return;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const StateId next = i + 1 == text.size() ? to : state();
    const auto byte = static_cast<std::uint8_t>(text[i]);
    bytes(from, byte, byte, next);
    from = next;
  }
}

void AutomatonBuilder::move(StateId from, Move move) {
  if (++edges_ > kMaxEdges) {
    exhausted_ = true;
    return;
  }
  nodes_[from].moves.push_back(move);
}

// Returns the automaton as it was built, with a class for each byte.
Automaton AutomatonBuilder::flattened(StateId start) const {
  Automaton automaton;
  automaton.loops = loops_;
  automaton.start = start;
  automaton.classes = 256;
  std::iota(automaton.class_of.begin(), automaton.class_of.end(), std::uint8_t{0});
  for (const Node& node : nodes_) {
    automaton.edge_begin.push_back(static_cast<std::uint32_t>(automaton.edges.size()));
    automaton.move_begin.push_back(static_cast<std::uint32_t>(automaton.moves.size()));
    automaton.is_final.push_back(node.is_final ? 1 : 0);
    automaton.string_loop.push_back(node.string_loop);
    automaton.edges.insert(automaton.edges.end(), node.edges.begin(), node.edges.end());
    automaton.moves.insert(automaton.moves.end(), node.moves.begin(), node.moves.end());
  }
  automaton.edge_begin.push_back(static_cast<std::uint32_t>(automaton.edges.size()));
  automaton.move_begin.push_back(static_cast<std::uint32_t>(automaton.moves.size()));
  return automaton;
}

// Makes one class of all bytes between two neighbouring bounds of edges: no edge tells them apart.
void AutomatonBuilder::assign_classes(Automaton& automaton) {
  std::array<bool, 257> begins{};
  for (const ByteEdge& edge : automaton.edges) {
    begins[edge.first] = true;
    begins[edge.last + 1U] = true;
  }
  std::uint32_t current = 0;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (byte > 0 && begins[byte]) {
      ++current;
    }
    automaton.class_of[byte] = static_cast<std::uint8_t>(current);
  }
  automaton.classes = current + 1;
  for (ByteEdge& edge : automaton.edges) {
    edge.first = automaton.class_of[edge.first];
    edge.last = automaton.class_of[edge.last];
  }
}

Result<Automaton> AutomatonBuilder::build(StateId start) const {
  if (exhausted_) {
    return make_error(ErrorCode::kExhausted,
                      "the grammar needs more than {} states or {} transitions; make it smaller",
                      kMaxStates, kMaxEdges);
  }
  std::optional<Automaton> automaton = trimmed(flattened(start), ByteSet().set());
  if (!automaton) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the grammar can never be satisfied: no finite text matches it");
  }
  assign_classes(*automaton);
  return *std::move(automaton);
}

}  // namespace protean::grammar
