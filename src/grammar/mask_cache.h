#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "contract/token_constraint.h"
#include "grammar/automaton.h"
#include "grammar/grammar_memory.h"
#include "grammar/stack_sets.h"
#include "grammar/token_table.h"

namespace protean::grammar {

// The masks of one grammar over one vocabulary, shared by all requests that have both.
//
// A mask is the union over the top frames of a set of stacks. The tokens that stay above the frames
// below depend on the top frames alone, so they are kept for each set of top frames (a Partial).
// Only tokens that end a frame in their middle are looked up with the stack at hand. Whole masks
// are kept as well.
class MaskCache {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{96} << 20;      // bound of stacks and masks
  static constexpr std::size_t kMaxMaskBytes = std::size_t{16} << 20;  // bound of whole masks
  // Returns the bytes that a grammar needs to keep what one step works out: a whole mask, the
  // partial masks it consists of, and stacks. With less, masks are worked out in every step.
  static std::size_t least_bytes(const TokenTable& tokens) { return tokens.mask_words() * 8 * 8; }

  MaskCache(std::string key, std::shared_ptr<const Automaton> automaton,
            std::shared_ptr<const TokenTable> tokens, std::shared_ptr<GrammarMemory> memory);
  ~MaskCache();
  MaskCache(const MaskCache&) = delete;
  MaskCache& operator=(const MaskCache&) = delete;

  // Callers of the following functions hold the mutex.
  std::mutex& mutex() { return mutex_; }
  // Drops what is kept if it takes too much memory, and counts that up. Numbers of sets are valid
  // for one generation.
  std::uint64_t generation();
  SetId start() const { return stacks_.start(); }
  SetId advance(SetId set, TokenId token);  // kNoStacks if the token may not follow
  void mask(SetId set, TokenMask mask);

  // The following functions lock the mutex themselves or need no lock.
  const std::string& key() const { return key_; }
  std::size_t grammar_bytes() const { return grammar_bytes_; }
  std::size_t bytes() const { return bytes_; }  // memory of stacks and masks, about
  // Returns true if an answer can neither end at once nor begin with any token.
  bool stuck_at_start();
  // Works out the masks that are nearest to an answer's start, within a bound on the work, so that
  // no step waits for them. Does so once.
  void warm();

 private:
  // The tokens that may follow a set of top frames, and the nodes of the trie (escapes) at which
  // those frames end before the token does.
  struct Partial {
    std::vector<std::uint64_t> dense;  // a mask, or empty
    std::vector<TokenId> sparse;       // ids, if dense is empty
    std::vector<std::uint32_t> escapes;
    const TokenTrie* trie = nullptr;
    std::size_t bytes() const {
      return sizeof(Partial) + dense.size() * 8 + (sparse.size() + escapes.size()) * 4;
    }
  };
  struct FrameGroup {
    SetId above = kNoStacks;  // top frames over kBottomStacks
    SetId below = kNoStacks;
  };

  bool full() const;
  void account();
  void fill(SetId set, TokenMask mask);
  std::vector<FrameGroup> frame_groups(SetId set);
  SetId string_key(Frame frame);
  const Partial& partial(SetId above);
  Partial work_out(SetId above);
  Partial compressed(Partial partial) const;
  template <class OnNode>
  void walk(const TokenTrie& trie, std::uint32_t from, SetId set, OnNode on_node);

  std::mutex mutex_;
  const std::string key_;
  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const TokenTable> tokens_;
  std::shared_ptr<GrammarMemory> memory_;
  const std::size_t grammar_bytes_;
  std::uint64_t generation_ = 0;
  StackSets stacks_;
  std::unordered_map<SetId, Partial> partials_;
  std::unordered_map<SetId, std::vector<std::uint64_t>> masks_;
  std::size_t partial_bytes_ = 0;
  std::atomic<std::size_t> bytes_ = 0;
  std::size_t walked_ = 0;  // nodes of tries, in all
  bool warm_ = false;
  std::vector<SetId> path_;
};

}  // namespace protean::grammar
