#include "grammar/gbnf_compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "grammar/gbnf_parser.h"
#include "grammar/stack_sets.h"

namespace protean::grammar {

namespace {

using Kind = GbnfNode::Kind;

constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kMaxHeight = StackSets::kMaxDepth - StackSets::kOpenDepth - 8;
constexpr std::uint32_t kMostEmptyRounds = 256;  // empty rounds cannot be counted by bytes

std::uint32_t above(std::uint32_t height, std::uint32_t frames) {
  return height >= kNever - frames ? kNever : height + frames;
}

// True if the rounds of a repeat are counted, each in a frame of its own.
bool is_counted(const GbnfNode& repeat) {
  return repeat.loop.least > 1 || (repeat.loop.most != kNoLimit && repeat.loop.most > 1);
}

// What the rules of a grammar have in common with all their texts.
class GbnfFacts {
 public:
  explicit GbnfFacts(const GbnfSyntax& syntax)
      : syntax_(syntax), empty_(syntax.rules.size(), 0), height_(syntax.rules.size(), kNever) {
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t r = 0; r < syntax.rules.size(); ++r) {
        const GbnfNode& body = syntax.rules[r].body;
        const char empty = may_be_empty(body) ? 1 : 0;
        const std::uint32_t height = height_of(body);
        changed = changed || empty != empty_[r] || height != height_[r];
        empty_[r] = empty;
        height_[r] = height;
      }
    }
  }

  bool may_be_empty(const GbnfNode& node) const {
    const auto empty = [this](const GbnfNode& part) { return may_be_empty(part); };
    switch (node.kind) {
      case Kind::kAlternatives:
        return std::any_of(node.parts.begin(), node.parts.end(), empty);
      case Kind::kSequence:
        return std::all_of(node.parts.begin(), node.parts.end(), empty);
      case Kind::kRepeat:
        return node.loop.least == 0 || empty(node.parts.front());
      case Kind::kText:
      case Kind::kCharacter:
        return false;
      case Kind::kReference:
        return empty_[node.rule] != 0;
    }
    return false;
  }

  // Returns the frames that the least deep text of a node needs; kNever if it has none.
  std::uint32_t height_of(const GbnfNode& node) const {
    switch (node.kind) {
      case Kind::kAlternatives: {
        std::uint32_t least = kNever;
        for (const GbnfNode& part : node.parts) {
          least = std::min(least, height_of(part));
        }
        return least;
      }
      case Kind::kSequence: {
        std::uint32_t most = 0;
        for (const GbnfNode& part : node.parts) {
          most = std::max(most, height_of(part));
        }
        return most;
      }
      case Kind::kRepeat:
        return node.loop.least == 0 ? 2 : above(height_of(node.parts.front()), 2);
      case Kind::kText:
        return 0;
      case Kind::kCharacter:
        return node.characters.empty() ? kNever : 0;
      case Kind::kReference:
        return above(height_[node.rule], 1);
    }
    return kNever;
  }

  // Fails if a rule can reach itself without reading a character, or needs stacks that are too
  // deep.
  Status check() const {
    for (std::size_t r = 0; r < height_.size(); ++r) {
      if (height_[r] != kNever && height_[r] > kMaxHeight) {
        return gbnf_error(ErrorCode::kExhausted, syntax_.rules[r].place,
                          fmt::format("each text of the rule \"{}\" nests more than {} rules",
                                      syntax_.rules[r].name, kMaxHeight));
      }
    }
    return check_left_recursion();
  }

 private:
  Status check_left_recursion() const {
    enum class Mark : char { kNew, kOpen, kDone };
    struct Visit {
      std::size_t rule;
      std::vector<const GbnfNode*> references;
      std::size_t next = 0;
    };
    std::vector<Mark> marks(syntax_.rules.size(), Mark::kNew);
    for (std::size_t r = 0; r < syntax_.rules.size(); ++r) {
      std::vector<Visit> path;
      const auto enter = [&](std::size_t rule) {
        marks[rule] = Mark::kOpen;
        path.push_back({rule, {}, 0});
        add_first(syntax_.rules[rule].body, path.back().references);
      };
      if (marks[r] == Mark::kNew) {
        enter(r);
      }
      while (!path.empty()) {
        Visit& visit = path.back();
        if (visit.next == visit.references.size()) {
          marks[visit.rule] = Mark::kDone;
          path.pop_back();
          continue;
        }
        const GbnfNode& reference = *visit.references[visit.next++];
        if (marks[reference.rule] == Mark::kOpen) {
          return gbnf_error(
              ErrorCode::kUnsupported, reference.place,
              fmt::format("the rule \"{}\" begins with itself: write a repeat, such as item "
                          "(\",\" item)*, in place of left recursion",
                          reference.text));
        }
        if (marks[reference.rule] == Mark::kNew) {
          enter(reference.rule);
        }
      }
    }
    return {};
  }

  // Adds the references that a text of the node may begin with. Returns true if the node may be
  // empty, so that what follows it may begin the text too.
  bool add_first(const GbnfNode& node, std::vector<const GbnfNode*>& references) const {
    if (node.kind == Kind::kReference) {
      references.push_back(&node);
    }
    for (const GbnfNode& part : node.parts) {
      if (!add_first(part, references) && node.kind == Kind::kSequence) {
        break;
      }
    }
    return may_be_empty(node);
  }

  const GbnfSyntax& syntax_;
  std::vector<char> empty_;
  std::vector<std::uint32_t> height_;
};

bool has_reference(const GbnfNode& node) {
  return node.kind == Kind::kReference ||
         std::any_of(node.parts.begin(), node.parts.end(), has_reference);
}

// Emits each rule once, as what is called: its begin state leads to its end state, which is final.
class GbnfCompiler {
 public:
  GbnfCompiler(AutomatonBuilder& builder, const GbnfSyntax& syntax, const GbnfFacts& facts)
      : builder_(builder), syntax_(syntax), facts_(facts) {
    for (std::size_t r = 0; r < syntax.rules.size(); ++r) {
      begin_.push_back(builder.state());
      end_.push_back(builder.state());
      builder.final(end_.back());
    }
  }

  Status emit_all(StateId from, StateId to) {
    for (std::size_t r = 0; r < syntax_.rules.size() && !builder_.exhausted(); ++r) {
      if (Status status = emit(syntax_.rules[r].body, begin_[r], end_[r]); !status) {
        return status;
      }
    }
    builder_.call(from, begin_[syntax_.root], to);
    return {};
  }

 private:
  // True if nothing follows in the frame: a reference there needs no frame of its own.
  bool ends_frame(StateId state) const {
    return std::binary_search(end_.begin(), end_.end(), state);
  }

  Status emit(const GbnfNode& node, StateId from, StateId to) {
    if (builder_.exhausted()) {
      return {};  // build() fails
    }
    switch (node.kind) {
      case Kind::kAlternatives:
        return emit_alternatives(node, from, to);
      case Kind::kSequence:
        for (std::size_t i = 0; i + 1 < node.parts.size(); ++i) {
          const StateId next = builder_.state();
          if (Status status = emit(node.parts[i], from, next); !status) {
            return status;
          }
          from = next;
        }
        if (node.parts.empty()) {
          builder_.go(from, to);
          return {};
        }
        return emit(node.parts.back(), from, to);
      case Kind::kRepeat:
        return is_counted(node) ? emit_counted(node, from, to) : emit_rounds(node, from, to);
      case Kind::kText:
        builder_.literal(from, node.text, to);
        return {};
      case Kind::kCharacter:
        emit_character(builder_, from, node.characters, Spelling::kPlain, to);
        return {};
      case Kind::kReference:
        if (ends_frame(to)) {
          builder_.go(from, begin_[node.rule]);
        } else {
          builder_.call(from, begin_[node.rule], to);
        }
        return {};
    }
    return {};
  }

  // Returns a state from which a part may begin. A part that nests deeper than it must is not begun
  // where stacks are deep, so that each text that was begun can end.
  StateId guarded(const GbnfNode& part, StateId from, bool needed) {
    const StateId begin = builder_.state();
    if (!needed && has_reference(part)) {
      builder_.open(from, begin);
    } else {
      builder_.go(from, begin);
    }
    return begin;
  }

  Status emit_alternatives(const GbnfNode& node, StateId from, StateId to) {
    const std::uint32_t least = facts_.height_of(node);
    for (const GbnfNode& part : node.parts) {
      const StateId begin = guarded(part, from, facts_.height_of(part) == least);
      if (Status status = emit(part, begin, to); !status) {
        return status;
      }
    }
    return {};
  }

  // Emits ?, * and +, whose rounds need no count.
  Status emit_rounds(const GbnfNode& node, StateId from, StateId to) {
    const GbnfNode& part = node.parts.front();
    if (node.loop.most == 0) {
      builder_.go(from, to);
      return {};
    }
    if (node.loop.most == 1) {
      if (node.loop.least == 0) {
        builder_.go(from, to);
      }
      return emit(part, guarded(part, from, node.loop.least == 1), to);
    }
    const StateId again = builder_.state();
    if (node.loop.least == 0) {
      builder_.go(from, again);
    } else if (Status status = emit(part, from, again); !status) {
      return status;
    }
    builder_.go(again, to);
    return emit(part, guarded(part, again, false), again);
  }

  // Emits {m,n}. The rounds that must come, and those that may, are loops of their own.
  Status emit_counted(const GbnfNode& node, StateId from, StateId to) {
    const GbnfNode& part = node.parts.front();
    const bool empty = facts_.may_be_empty(part);
    const std::uint32_t least = empty ? 0 : node.loop.least;
    const std::uint32_t most = node.loop.most;
    if (empty && most != kNoLimit && most > kMostEmptyRounds) {
      return gbnf_error(ErrorCode::kUnsupported, node.place,
                        fmt::format("what may be empty is repeated {} times, at most {} are "
                                    "supported",
                                    most, kMostEmptyRounds));
    }
    const StateId round = builder_.state();
    const StateId round_end = builder_.state();
    builder_.final(round_end);
    if (Status status = emit(part, round, round_end); !status) {
      return status;
    }
    if (least > 0) {  // AutomatonBuilder::build() needs one round before the loop
      const StateId after_first = builder_.state();
      builder_.call(from, round, after_first);
      from = after_first;
    }
    if (least > 1) {
      const StateId after_needed = builder_.state();
      emit_loop({least - 1, least - 1}, {round, true, false}, from, after_needed);
      from = after_needed;
    }
    if (most == least) {
      builder_.go(from, to);
    } else {
      emit_loop({0, most == kNoLimit ? kNoLimit : most - least},
                {round, false, has_reference(part)}, from, to);
    }
    return {};
  }

  struct Round {
    StateId callee = 0;
    bool needed = false;
    bool nests = false;
  };

  // A loop is called, because its count belongs to its frame, and so is each round.
  void emit_loop(Loop bounds, const Round& round, StateId from, StateId to) {
    const StateId rounds = builder_.state();
    const StateId again = builder_.state();
    const StateId counted = builder_.state();
    const StateId begun = builder_.state();
    const StateId done = builder_.state();
    builder_.final(done);
    builder_.call(from, rounds, to);
    builder_.go(rounds, again);
    const std::uint32_t loop = builder_.loop(bounds.least, bounds.most);
    builder_.count(again, loop, counted);
    if (round.nests && !round.needed) {
      builder_.open(counted, begun);
    } else {
      builder_.go(counted, begun);
    }
    builder_.call(begun, round.callee, again);
    builder_.leave(again, loop, done);
  }

  AutomatonBuilder& builder_;
  const GbnfSyntax& syntax_;
  const GbnfFacts& facts_;
  std::vector<StateId> begin_;  // first state of each rule
  std::vector<StateId> end_;    // ascending
};

}  // namespace

Status emit_gbnf(AutomatonBuilder& builder, std::string_view text, StateId from, StateId to) {
  const Result<GbnfSyntax> syntax = parse_gbnf(text);
  if (!syntax) {
    return syntax.error();
  }
  const GbnfFacts facts(*syntax);
  if (Status status = facts.check(); !status) {
    return status;
  }
  return GbnfCompiler(builder, *syntax, facts).emit_all(from, to);
}

}  // namespace protean::grammar
