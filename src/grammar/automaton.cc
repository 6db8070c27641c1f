#include "grammar/automaton.h"

#include <algorithm>
#include <utility>

namespace protean::grammar {

namespace {

class Fnv {
 public:
  void add(std::uint64_t value) {
    hash_ ^= value;
    hash_ *= 0x100000001b3ULL;
    hash_ ^= hash_ >> 29;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace

std::uint64_t Automaton::hash() const {
  Fnv fnv;
  fnv.add(start);
  for (std::size_t s = 0; s < states(); ++s) {
    fnv.add((std::uint64_t{edge_begin[s]} << 32) | move_begin[s]);
    fnv.add((std::uint64_t{string_loop[s]} << 1) | is_final[s]);
  }
  for (const ByteEdge& edge : edges) {
    fnv.add((std::uint64_t{edge.to} << 16) | (std::uint64_t{edge.first} << 8) | edge.last);
  }
  for (const Move& move : moves) {
    fnv.add((std::uint64_t{move.to} << 32) | move.argument);
    fnv.add(static_cast<std::uint64_t>(move.kind));
  }
  for (const Loop& loop : loops) {
    fnv.add((std::uint64_t{loop.least} << 32) | loop.most);
  }
  for (const std::uint8_t class_id : class_of) {
    fnv.add(class_id);
  }
  return fnv.value();
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

// Backwards from the final states, a call being passable once its callee is known to finish.
std::vector<char> AutomatonBuilder::can_finish() const {
  struct Caller {
    StateId from;
    StateId callee;
  };
  std::vector<std::vector<StateId>> before(nodes_.size());
  std::vector<std::vector<Caller>> returns(nodes_.size());  // by the state returned to
  std::vector<std::vector<Move>> calls(nodes_.size());      // by callee: {to = from, back}
  for (StateId s = 0; s < nodes_.size(); ++s) {
    for (const ByteEdge& edge : nodes_[s].edges) {
      before[edge.to].push_back(s);
    }
    for (const Move& move : nodes_[s].moves) {
      if (move.kind == Move::Kind::kCall) {
        returns[move.argument].push_back({s, move.to});
        calls[move.to].push_back({Move::Kind::kCall, s, move.argument});
      } else {
        before[move.to].push_back(s);
      }
    }
  }
  std::vector<char> useful(nodes_.size(), 0);
  std::vector<StateId> queue;
  const auto mark = [&](StateId s) {
    if (useful[s] == 0) {
      useful[s] = 1;
      queue.push_back(s);
    }
  };
  for (StateId s = 0; s < nodes_.size(); ++s) {
    if (nodes_[s].is_final) {
      mark(s);
    }
  }
  while (!queue.empty()) {
    const StateId s = queue.back();
    queue.pop_back();
    std::for_each(before[s].begin(), before[s].end(), mark);
    for (const Caller& caller : returns[s]) {
      if (useful[caller.callee] != 0) {
        mark(caller.from);
      }
    }
    for (const Move& call : calls[s]) {
      if (useful[call.argument] != 0) {
        mark(call.to);
      }
    }
  }
  return useful;
}

std::vector<char> AutomatonBuilder::reachable(StateId start,
                                              const std::vector<char>& useful) const {
  std::vector<char> seen(nodes_.size(), 0);
  std::vector<StateId> queue;
  const auto mark = [&](StateId s) {
    if (useful[s] != 0 && seen[s] == 0) {
      seen[s] = 1;
      queue.push_back(s);
    }
  };
  mark(start);
  while (!queue.empty()) {
    const Node& node = nodes_[queue.back()];
    queue.pop_back();
    for (const ByteEdge& edge : node.edges) {
      mark(edge.to);
    }
    for (const Move& move : node.moves) {
      if (move.kind != Move::Kind::kCall) {
        mark(move.to);
      } else if (useful[move.to] != 0 && useful[move.argument] != 0) {
        mark(move.to);
        mark(move.argument);
      }
    }
  }
  return seen;
}

// Bytes between two neighbouring bounds of edges go the same way everywhere.
void AutomatonBuilder::assign_classes(Automaton& automaton) const {
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
  const std::vector<char> kept = reachable(start, can_finish());
  if (kept[start] == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the grammar can never be satisfied: no finite text matches it");
  }
  std::vector<StateId> number(nodes_.size(), 0);
  StateId states = 2;
  for (StateId s = 2; s < nodes_.size(); ++s) {
    number[s] = kept[s] != 0 ? states++ : 0;
  }
  Automaton automaton;
  automaton.loops = loops_;
  automaton.start = number[start];
  for (StateId s = 0; s < nodes_.size(); ++s) {
    if (s >= 2 && kept[s] == 0) {
      continue;
    }
    const Node& node = nodes_[s];
    automaton.edge_begin.push_back(static_cast<std::uint32_t>(automaton.edges.size()));
    automaton.move_begin.push_back(static_cast<std::uint32_t>(automaton.moves.size()));
    automaton.is_final.push_back(node.is_final ? 1 : 0);
    automaton.string_loop.push_back(node.string_loop);
    for (const ByteEdge& edge : node.edges) {
      if (kept[edge.to] != 0) {
        automaton.edges.push_back({edge.first, edge.last, number[edge.to]});
      }
    }
    for (const Move& move : node.moves) {
      const bool call = move.kind == Move::Kind::kCall;
      if (kept[move.to] != 0 && (!call || kept[move.argument] != 0)) {
        automaton.moves.push_back(
            {move.kind, number[move.to], call ? number[move.argument] : move.argument});
      }
    }
  }
  automaton.edge_begin.push_back(static_cast<std::uint32_t>(automaton.edges.size()));
  automaton.move_begin.push_back(static_cast<std::uint32_t>(automaton.moves.size()));
  assign_classes(automaton);
  return automaton;
}

}  // namespace protean::grammar
