#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean::grammar {

using StateId = std::uint32_t;

constexpr StateId kEndState = 0;     // lies below the last frame: the text may end here
constexpr StateId kBottomState = 1;  // stands for the unknown callers of a frame
constexpr std::uint32_t kNoLimit = 0xffffffff;

// A repetition that is counted in the one register of its frame. A body with a loop of its own is
// called, so that it has a frame of its own.
struct Loop {
  std::uint32_t least = 0;
  std::uint32_t most = kNoLimit;
};

struct ByteEdge {
  std::uint8_t first = 0;  // first and last are byte classes once the automaton is built
  std::uint8_t last = 0;
  StateId to = 0;
};

// A transition that reads no byte.
struct Move {
  enum class Kind : std::uint8_t {
    kGo,
    kOpen,   // like kGo, but not beyond StackSets::kOpenDepth: bounds what may nest without end
    kCall,   // pushes `argument` as the state to return to
    kCount,  // begins another round of loop `argument` unless it had the most it may have
    kLeave,  // leaves loop `argument` if it had the least it must have
  };
  Kind kind = Kind::kGo;
  StateId to = 0;
  std::uint32_t argument = 0;
};

// A recursive transition network over bytes: a nondeterministic pushdown automaton whose final
// states pop a frame. The end can be reached from each state. Immutable.
struct Automaton {
  std::vector<std::uint32_t> edge_begin;  // state s has [edge_begin[s], edge_begin[s + 1])
  std::vector<std::uint32_t> move_begin;
  std::vector<ByteEdge> edges;
  std::vector<Move> moves;
  std::vector<std::uint8_t> is_final;
  std::vector<std::uint32_t> string_loop;  // see begins_string_character(); 1 + loop, or 0
  std::vector<Loop> loops;
  std::array<std::uint8_t, 256> class_of{};  // bytes of one class are on the same edges
  std::uint32_t classes = 0;
  StateId start = 0;

  std::size_t states() const { return is_final.size(); }
  std::size_t bytes() const;  // memory that it takes
};

// Builds an automaton. States and edges beyond kMaxStates and kMaxEdges are dropped, and build()
// then fails, so callers need not check each step. Long loops should ask exhausted().
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
  // Says that any one character of a JSON string, counted by `loop`, may begin at `state`.
  void begins_string_character(StateId state, std::uint32_t loop) {
    nodes_[state].string_loop = loop + 1;
  }

  bool exhausted() const { return exhausted_; }

  // Fails with kInvalidArgument if no text reaches the end, kExhausted if something was dropped.
  // Before a loop with least > 0 one round must be emitted, which shows whether its body can be
  // matched at all.
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
