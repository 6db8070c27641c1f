#include "grammar/stack_sets.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace protean::grammar {

namespace {

std::uint64_t hash_of(std::span<const Frame> frames) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ULL * (frames.size() + 1);
  for (const Frame& frame : frames) {
    for (const std::uint64_t part :
         {std::uint64_t{frame.state}, std::uint64_t{frame.count}, std::uint64_t{frame.below}}) {
      hash = (hash ^ part) * 0xff51afd7ed558ccdULL;
      hash ^= hash >> 32;
    }
  }
  return hash;
}

std::uint64_t key_of(const Frame& frame) {
  return (std::uint64_t{frame.state} << 32) | frame.count;
}

bool before(const Frame& a, const Frame& b) {
  return key_of(a) < key_of(b);
}

}  // namespace

StackSets::StackSets(const Automaton& automaton) : automaton_(&automaton) {
  intern({});
  intern(std::array{Frame{kEndState, 0, kNoStacks}});
  intern(std::array{Frame{kBottomState, 0, kNoStacks}});
  check(sets_.size() == 3, "the first three sets have fixed numbers");
  add({automaton.start, 0, kEndStacks});
  start_ = close();
}

SetId StackSets::intern(std::span<const Frame> frames) {
  const std::uint64_t hash = hash_of(frames);
  const auto [first, last] = interned_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const std::span<const Frame> known = this->frames(it->second);
    if (std::equal(known.begin(), known.end(), frames.begin(), frames.end())) {
      return it->second;
    }
  }
  Set set{.begin = static_cast<std::uint32_t>(frames_.size()),
          .size = static_cast<std::uint32_t>(frames.size())};
  for (const Frame& frame : frames) {
    set.has_end |= frame.state == kEndState;
    set.has_bottom |= frame.state == kBottomState;
    set.depth = std::max(set.depth, sets_.empty() ? 0 : sets_[frame.below].depth + 1);
  }
  frames_.insert(frames_.end(), frames.begin(), frames.end());
  const auto id = static_cast<SetId>(sets_.size());
  sets_.push_back(set);
  interned_.emplace(hash, id);
  return id;
}

// Recurses as deep as the stacks are, at most kMaxDepth.
SetId StackSets::unite(SetId a, SetId b) {
  if (a == b || b == kNoStacks) {
    return a;
  }
  if (a == kNoStacks) {
    return b;
  }
  const std::uint64_t key = (std::uint64_t{std::min(a, b)} << 32) | std::max(a, b);
  if (const auto it = united_.find(key); it != united_.end()) {
    return it->second;
  }
  const std::span<const Frame> left_view = frames(a);
  const std::span<const Frame> right_view = frames(b);
  const std::vector<Frame> left(left_view.begin(), left_view.end());
  const std::vector<Frame> right(right_view.begin(), right_view.end());
  std::vector<Frame> both;
  both.reserve(left.size() + right.size());
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < left.size() || j < right.size()) {
    if (j == right.size() || (i < left.size() && before(left[i], right[j]))) {
      both.push_back(left[i++]);
    } else if (i == left.size() || before(right[j], left[i])) {
      both.push_back(right[j++]);
    } else {
      both.push_back({left[i].state, left[i].count, unite(left[i].below, right[j].below)});
      ++i;
      ++j;
    }
  }
  const SetId united = intern(both);
  united_.emplace(key, united);
  return united;
}

void StackSets::add(Frame frame) {
  const auto [it, fresh] =
      open_index_.try_emplace(key_of(frame), static_cast<std::uint32_t>(open_.size()));
  if (fresh) {
    queue_.push_back(it->second);
    open_.push_back(frame);
    return;
  }
  const SetId merged = unite(open_[it->second].below, frame.below);
  if (merged != open_[it->second].below) {
    open_[it->second].below = merged;
    queue_.push_back(it->second);
  }
}

void StackSets::expand(Frame frame) {
  if (automaton_->is_final[frame.state] != 0) {
    for (std::uint32_t i = 0; i < sets_[frame.below].size; ++i) {
      add(frames_[sets_[frame.below].begin + i]);
    }
  }
  const std::uint32_t depth = sets_[frame.below].depth;
  for (std::uint32_t m = automaton_->move_begin[frame.state];
       m < automaton_->move_begin[frame.state + 1]; ++m) {
    const Move& move = automaton_->moves[m];
    switch (move.kind) {
      case Move::Kind::kGo:
        add({move.to, frame.count, frame.below});
        break;
      case Move::Kind::kOpen:
        if (depth < kOpenDepth) {
          add({move.to, frame.count, frame.below});
        }
        break;
      case Move::Kind::kCall:
        if (depth < kMaxDepth) {
          add({move.to, 0, intern(std::array{Frame{move.argument, frame.count, frame.below}})});
        }
        break;
      case Move::Kind::kCount: {
        const Loop& loop = automaton_->loops[move.argument];
        if (loop.most == kNoLimit) {
          add({move.to, std::min(frame.count + 1, loop.least), frame.below});
        } else if (frame.count < loop.most) {
          add({move.to, frame.count + 1, frame.below});
        }
        break;
      }
      case Move::Kind::kLeave:
        if (frame.count >= automaton_->loops[move.argument].least) {
          add({move.to, 0, frame.below});
        }
        break;
    }
  }
}

// Returns the set of all frames that can be reached without a byte from those added, without frames
// that can neither read a byte nor end.
SetId StackSets::close() {
  while (!queue_.empty()) {
    const std::uint32_t index = queue_.back();
    queue_.pop_back();
    expand(open_[index]);
  }
  std::erase_if(open_, [this](const Frame& frame) {
    return frame.state > kBottomState &&
           automaton_->edge_begin[frame.state] == automaton_->edge_begin[frame.state + 1];
  });
  std::sort(open_.begin(), open_.end(), before);
  const SetId set = intern(open_);
  open_.clear();
  open_index_.clear();
  return set;
}

SetId StackSets::learn_step(SetId set, std::uint32_t byte_class) {
  for (std::uint32_t i = 0; i < sets_[set].size; ++i) {
    const Frame frame = frames_[sets_[set].begin + i];
    for (std::uint32_t e = automaton_->edge_begin[frame.state];
         e < automaton_->edge_begin[frame.state + 1]; ++e) {
      const ByteEdge& edge = automaton_->edges[e];
      if (edge.first <= byte_class && byte_class <= edge.last) {
        add({edge.to, frame.count, frame.below});
      }
    }
  }
  const SetId next = close();
  if (sets_[set].row == kNoRow) {
    sets_[set].row = static_cast<std::uint32_t>(rows_.size());
    rows_.resize(rows_.size() + automaton_->classes, kUnknown);
  }
  rows_[sets_[set].row + byte_class] = next;
  return next;
}

SetId StackSets::above_bottom(std::span<const Frame> tops) {
  std::vector<Frame> copies(tops.begin(), tops.end());
  for (Frame& frame : copies) {
    frame.below = kBottomStacks;
  }
  return intern(copies);
}

SetId StackSets::resume(SetId below) {
  if (const auto it = resumed_.find(below); it != resumed_.end()) {
    return it->second;
  }
  for (std::uint32_t i = 0; i < sets_[below].size; ++i) {
    add(frames_[sets_[below].begin + i]);
  }
  const SetId set = close();
  resumed_.emplace(below, set);
  return set;
}

std::size_t StackSets::bytes() const {
  constexpr std::size_t kMapEntryBytes = 64;
  return sets_.capacity() * sizeof(Set) + frames_.capacity() * sizeof(Frame) +
         rows_.capacity() * sizeof(SetId) +
         (interned_.size() + united_.size() + resumed_.size()) * kMapEntryBytes;
}

}  // namespace protean::grammar
