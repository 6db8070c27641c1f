#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/automaton.h"

namespace protean::grammar {

using SetId = std::uint32_t;

constexpr SetId kNoStacks = 0;      // no way to go on
constexpr SetId kEndStacks = 1;     // nothing is left to be matched
constexpr SetId kBottomStacks = 2;  // the callers are left open

// One state of the automaton, its loop's count, and all stacks that may lie under it.
struct Frame {
  StateId state = 0;
  std::uint32_t count = 0;
  SetId below = kNoStacks;
  friend bool operator==(const Frame&, const Frame&) = default;
};

// All stacks an automaton can have after some bytes, as a number: equal sets have equal numbers.
// A set is its top frames, each state and count once, and what is below them is a set again, so
// that even exponentially many stacks take room linear in their depth. Steps are remembered: an
// automaton made while it is used. Grows only; not guarded. Refers to the automaton.
class StackSets {
 public:
  // The deepest that kOpen goes, and what no call passes.
  static constexpr std::uint32_t kOpenDepth = 1000;
  static constexpr std::uint32_t kMaxDepth = 4000;

  explicit StackSets(const Automaton& automaton);

  SetId start() const { return start_; }
  SetId step(SetId set, std::uint8_t byte) {
    const std::uint32_t row = sets_[set].row;
    const std::uint32_t byte_class = automaton_->class_of[byte];
    if (row != kNoRow) {
      const SetId known = rows_[row + byte_class];
      if (known != kUnknown) {
        return known;
      }
    }
    return learn_step(set, byte_class);
  }
  bool at_end(SetId set) const { return sets_[set].has_end; }
  bool at_bottom(SetId set) const { return sets_[set].has_bottom; }
  std::span<const Frame> frames(SetId set) const {
    return std::span(frames_).subspan(sets_[set].begin, sets_[set].size);
  }
  // Those frames, whatever was below them.
  SetId above_bottom(std::span<const Frame> tops);
  // The stacks after the frames above `below` were done.
  SetId resume(SetId below);

  std::size_t bytes() const;

 private:
  static constexpr std::uint32_t kNoRow = 0xffffffff;
  static constexpr SetId kUnknown = 0xffffffff;

  struct Set {
    std::uint32_t begin = 0;
    std::uint32_t size = 0;
    std::uint32_t depth = 0;
    std::uint32_t row = kNoRow;
    bool has_end = false;
    bool has_bottom = false;
  };

  SetId learn_step(SetId set, std::uint32_t byte_class);
  void add(Frame frame);
  void expand(Frame frame);
  SetId close();
  SetId intern(std::span<const Frame> frames);
  SetId unite(SetId a, SetId b);

  const Automaton* automaton_;
  std::vector<Set> sets_;
  std::vector<Frame> frames_;
  std::vector<SetId> rows_;
  std::unordered_multimap<std::uint64_t, SetId> interned_;
  std::unordered_map<std::uint64_t, SetId> united_;
  std::unordered_map<SetId, SetId> resumed_;
  SetId start_ = kNoStacks;
  // While closing: the frames found, where each state and count is among them, and those to do.
  std::vector<Frame> open_;
  std::unordered_map<std::uint64_t, std::uint32_t> open_index_;
  std::vector<std::uint32_t> queue_;
};

}  // namespace protean::grammar
