#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "contract/token_constraint.h"
#include "grammar/automaton.h"
#include "grammar/stack_sets.h"
#include "grammar/token_table.h"

namespace protean::grammar {

// What was worked out for one grammar and one vocabulary, shared by the requests that have both.
// A mask is the union over the top frames of a set of stacks: tokens that stay above the frames
// below are the same wherever those frames occur and are kept by them alone; only tokens that
// end a frame in their middle are looked at with the stack at hand. Whole masks are kept too.
// Guarded by `mutex()`, which callers of start() to full() hold. Sets' numbers are good for the
// cache's life; when full() a constraint changes to a new one.
class MaskCache {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{96} << 20;
  static constexpr std::size_t kMaskBytes = std::size_t{16} << 20;  // of them, for whole masks

  MaskCache(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTable> tokens);

  std::mutex& mutex() { return mutex_; }
  SetId start() const { return stacks_.start(); }
  SetId advance(SetId set, TokenId token);  // kNoStacks if it may not follow
  void mask(SetId set, TokenMask mask);
  bool full() const;

  // What it holds, about. Any thread, without the lock.
  std::size_t bytes() const { return bytes_; }

  // These lock. Is there neither a first token nor an end at once?
  bool stuck_at_start();
  // Works out what answers need at the places nearest to their start, in bytes, as far as a bound
  // on the work lets it: else the step that first comes there would wait for it. Once.
  void warm();

 private:
  // The tokens that may follow some frames, and where in the trie those frames are done although
  // the token is not.
  struct Partial {
    std::vector<std::uint64_t> dense;  // or
    std::vector<TokenId> sparse;
    std::vector<std::uint32_t> escapes;
    const TokenTrie* trie = nullptr;
    std::size_t bytes() const {
      return sizeof(Partial) + dense.size() * 8 + (sparse.size() + escapes.size()) * 4;
    }
  };
  struct Part {
    SetId above = kNoStacks;  // frames with their callers left open
    SetId below = kNoStacks;
  };

  void fill(SetId set, TokenMask mask);
  std::vector<Part> parts_of(SetId set);
  SetId string_key(Frame frame);
  const Partial& partial(SetId above);
  Partial work_out(SetId above);
  Partial compressed(Partial partial) const;
  template <class OnNode>
  void walk(const TokenTrie& trie, std::uint32_t from, SetId set, OnNode on_node);

  std::mutex mutex_;
  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const TokenTable> tokens_;
  StackSets stacks_;
  std::unordered_map<SetId, Partial> partials_;
  std::unordered_map<SetId, std::vector<std::uint64_t>> masks_;
  std::size_t partial_bytes_ = 0;
  std::atomic<std::size_t> bytes_ = 0;
  std::size_t walked_ = 0;  // nodes of tries
  bool warm_ = false;
  std::vector<SetId> path_;
};

}  // namespace protean::grammar
