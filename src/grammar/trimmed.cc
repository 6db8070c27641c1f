#include "grammar/trimmed.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace protean::grammar {

namespace {

class Trimmer {
 public:
  Trimmer(const Automaton& automaton, const ByteSet& bytes) : automaton_(automaton) {
    for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
      written_[automaton.class_of[byte]] = written_[automaton.class_of[byte]] || bytes[byte];
    }
  }

  std::optional<Automaton> trim() {
    find_useful();
    find_reachable();
    if (kept_[automaton_.start] == 0) {
      return std::nullopt;
    }
    return made();
  }

 private:
  bool passable(const ByteEdge& edge) const {
    for (std::size_t c = edge.first; c <= edge.last; ++c) {
      if (written_[c]) {
        return true;
      }
    }
    return false;
  }
  template <class OnEdge, class OnMove>
  void for_each_way(StateId from, OnEdge on_edge, OnMove on_move) const {
    for (auto e = automaton_.edge_begin[from]; e < automaton_.edge_begin[from + 1]; ++e) {
      if (passable(automaton_.edges[e])) {
        on_edge(automaton_.edges[e]);
      }
    }
    for (auto m = automaton_.move_begin[from]; m < automaton_.move_begin[from + 1]; ++m) {
      on_move(automaton_.moves[m]);
    }
  }

  void find_useful();
  void find_reachable();
  Automaton made() const;

  const Automaton& automaton_;
  std::array<bool, 256> written_{};  // classes that hold one of the bytes
  std::vector<char> useful_;         // states from which the end of the frame can be reached
  std::vector<char> kept_;
};

// Searches backwards from the final states. A call can be passed once its callee is known to end.
void Trimmer::find_useful() {
  struct Call {
    StateId from;
    StateId callee;
    StateId back;
  };
  const std::size_t states = automaton_.states();
  std::vector<std::vector<StateId>> before(states);
  std::vector<std::vector<Call>> calls(states);  // indexed by callee, then by return state
  for (StateId s = 0; s < states; ++s) {
    for_each_way(
        s, [&](const ByteEdge& edge) { before[edge.to].push_back(s); },
        [&](const Move& move) {
          if (move.kind != Move::Kind::kCall) {
            before[move.to].push_back(s);
            return;
          }
          calls[move.to].push_back({s, move.to, move.argument});
          calls[move.argument].push_back({s, move.to, move.argument});
        });
  }
  useful_.assign(states, 0);
  std::vector<StateId> queue;
  const auto mark = [&](StateId s) {
    if (useful_[s] == 0) {
      useful_[s] = 1;
      queue.push_back(s);
    }
  };
  for (StateId s = 0; s < states; ++s) {
    if (automaton_.is_final[s] != 0) {
      mark(s);
    }
  }
  while (!queue.empty()) {
    const StateId s = queue.back();
    queue.pop_back();
    std::for_each(before[s].begin(), before[s].end(), mark);
    for (const Call& call : calls[s]) {
      if (useful_[call.callee] != 0 && useful_[call.back] != 0) {
        mark(call.from);
      }
    }
  }
}

void Trimmer::find_reachable() {
  kept_.assign(automaton_.states(), 0);
  std::vector<StateId> queue;
  const auto mark = [&](StateId s) {
    if (useful_[s] != 0 && kept_[s] == 0) {
      kept_[s] = 1;
      queue.push_back(s);
    }
  };
  mark(automaton_.start);
  while (!queue.empty()) {
    const StateId s = queue.back();
    queue.pop_back();
    for_each_way(
        s, [&](const ByteEdge& edge) { mark(edge.to); },
        [&](const Move& move) {
          if (move.kind != Move::Kind::kCall) {
            mark(move.to);
          } else if (useful_[move.to] != 0 && useful_[move.argument] != 0) {
            mark(move.to);
            mark(move.argument);
          }
        });
  }
}

Automaton Trimmer::made() const {
  std::vector<StateId> number(automaton_.states(), 0);
  StateId states = 2;
  for (StateId s = 2; s < automaton_.states(); ++s) {
    number[s] = kept_[s] != 0 ? states++ : 0;
  }
  Automaton made;
  made.loops = automaton_.loops;
  made.start = number[automaton_.start];
  made.class_of = automaton_.class_of;
  made.classes = automaton_.classes;
  for (StateId s = 0; s < automaton_.states(); ++s) {
    if (s > kBottomState && kept_[s] == 0) {
      continue;
    }
    made.edge_begin.push_back(static_cast<std::uint32_t>(made.edges.size()));
    made.move_begin.push_back(static_cast<std::uint32_t>(made.moves.size()));
    made.is_final.push_back(automaton_.is_final[s]);
    made.string_loop.push_back(automaton_.string_loop[s]);
    for_each_way(
        s,
        [&](const ByteEdge& edge) {
          if (kept_[edge.to] != 0) {
            made.edges.push_back({edge.first, edge.last, number[edge.to]});
          }
        },
        [&](const Move& move) {
          const bool call = move.kind == Move::Kind::kCall;
          if (kept_[move.to] != 0 && (!call || kept_[move.argument] != 0)) {
            made.moves.push_back(
                {move.kind, number[move.to], call ? number[move.argument] : move.argument});
          }
        });
  }
  made.edge_begin.push_back(static_cast<std::uint32_t>(made.edges.size()));
  made.move_begin.push_back(static_cast<std::uint32_t>(made.moves.size()));
  return made;
}

}  // namespace

std::optional<Automaton> trimmed(const Automaton& automaton, const ByteSet& bytes) {
  return Trimmer(automaton, bytes).trim();
}

}  // namespace protean::grammar
