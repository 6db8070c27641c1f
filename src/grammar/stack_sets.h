#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/automaton.h"

namespace protean::grammar {

using SetId = std::uint32_t;

constexpr SetId kNoStacks = 0;      // no text can follow
constexpr SetId kEndStacks = 1;     // nothing is left to match
constexpr SetId kBottomStacks = 2;  // stands for unknown callers

// A state of the automaton, its loop's count, and all stacks that may lie below it.
struct Frame {
  StateId state = 0;
  std::uint32_t count = 0;
  SetId below = kNoStacks;
  friend bool operator==(const Frame&, const Frame&) = default;
};

// Sets of the stacks that an automaton can have after some bytes. Equal sets have equal numbers. A
// set holds its top frames, each state and count once; below each frame lies a set again, so that
// exponentially many stacks take memory linear in their depth. Steps are kept: a deterministic
// automaton is built while it is used. Only grows. Not thread-safe. Refers to the automaton.
class StackSets {
 public:
  // Depths of the stack up to which kOpen and kCall are taken.
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
  // Returns the set of these frames over kBottomStacks.
  SetId above_bottom(std::span<const Frame> tops);
  // Returns the stacks once the frames above `below` have ended.
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
  // During close(): the frames found, their index by state and count, and those to expand.
  std::vector<Frame> open_;
  std::unordered_map<std::uint64_t, std::uint32_t> open_index_;
  std::vector<std::uint32_t> queue_;
};

}  // namespace protean::grammar
