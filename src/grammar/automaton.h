#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean::grammar {

using StateId = std::uint32_t;

constexpr StateId kEndState = 0;     // below the last frame: the text may end here
constexpr StateId kBottomState = 1;  // below a frame whose callers are left open
constexpr std::uint32_t kNoLimit = 0xffffffff;

// A repetition counted in its frame's one register. Bodies that count themselves are called, so
// that each has a frame of its own.
struct Loop {
  std::uint32_t least = 0;
  std::uint32_t most = kNoLimit;
};

struct ByteEdge {
  std::uint8_t first = 0;  // of the automaton's byte classes, once built
  std::uint8_t last = 0;
  StateId to = 0;
};

// What costs no byte.
struct Move {
  enum class Kind : std::uint8_t {
    kGo,
    kOpen,   // as kGo, but only while the stack is not too deep: what may nest without end
    kCall,   // push `argument` as the state to return to
    kCount,  // one more round of loop `argument`, if it may have one
    kLeave,  // out of loop `argument`, if it had enough
  };
  Kind kind = Kind::kGo;
  StateId to = 0;
  std::uint32_t argument = 0;
};

// A recursive transition network over bytes: a nondeterministic pushdown automaton whose final
// states pop. From each of its states the end can be reached. Immutable.
struct Automaton {
  std::vector<std::uint32_t> edge_begin;  // of state s: [edge_begin[s], edge_begin[s + 1])
  std::vector<std::uint32_t> move_begin;
  std::vector<ByteEdge> edges;
  std::vector<Move> moves;
  std::vector<std::uint8_t> is_final;
  std::vector<std::uint32_t> string_loop;  // 1 + the loop whose any JSON character starts here
  std::vector<Loop> loops;
  std::array<std::uint8_t, 256> class_of{};  // bytes no edge tells apart
  std::uint32_t classes = 0;
  StateId start = 0;

  std::size_t states() const { return is_final.size(); }
  std::size_t bytes() const;  // that it takes in memory
};

// Grows an automaton. What would pass kMaxStates or kMaxEdges is dropped and told at build(), so
// that builders need not look at each step; long loops ask exhausted().
class AutomatonBuilder {
 public:
  static constexpr std::size_t kMaxStates = 400000;
  static constexpr std::size_t kMaxEdges = 1600000;

  AutomatonBuilder();

  StateId state();
  std::uint32_t loop(std::uint32_t least, std::uint32_t most);
  void bytes(StateId from, std::uint8_t first, std::uint8_t last, StateId to);
  void literal(StateId from, std::string_view text, StateId to);
  void go(StateId from, StateId to) { move(from, {Move::Kind::kGo, to, 0}); }
  void open(StateId from, StateId to) { move(from, {Move::Kind::kOpen, to, 0}); }
  void call(StateId from, StateId callee, StateId back) {
    move(from, {Move::Kind::kCall, callee, back});
  }
  void count(StateId from, std::uint32_t loop, StateId to) {
    move(from, {Move::Kind::kCount, to, loop});
  }
  void leave(StateId from, std::uint32_t loop, StateId to) {
    move(from, {Move::Kind::kLeave, to, loop});
  }
  void final(StateId state) { nodes_[state].is_final = true; }
  void begins_string_character(StateId state, std::uint32_t loop) {
    nodes_[state].string_loop = loop + 1;
  }

  bool exhausted() const { return exhausted_; }

  // kInvalidArgument when no text at all reaches the end, kExhausted when something was dropped.
  // A loop with least > 0 must have one round spelt out before it: whether its body can be done
  // is judged by that.
  Result<Automaton> build(StateId start) const;

 private:
  struct Node {
    std::vector<ByteEdge> edges;
    std::vector<Move> moves;
    bool is_final = false;
    std::uint32_t string_loop = 0;
  };

  void move(StateId from, Move move);
  Automaton flattened(StateId start) const;
  static void assign_classes(Automaton& automaton);

  std::vector<Node> nodes_;
  std::vector<Loop> loops_;
  std::size_t edges_ = 0;
  bool exhausted_ = false;
};

}  // namespace protean::grammar
