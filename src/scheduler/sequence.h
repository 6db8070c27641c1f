#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/units.h"
#include "contract/request.h"
#include "contract/step.h"

namespace protean {

// A sequence's place in the order of all sequences; the smaller, the earlier. It changes
// only when the sequence goes to another scheduler without its KV.
struct QueuePlace {
  int priority = 0;
  TimeNs due_ns = 0;  // the latest time at which it should begin
  std::uint64_t arrival = 0;

  friend auto operator<=>(const QueuePlace&, const QueuePlace&) = default;
};

// A request that the scheduler has accepted and not yet removed.
struct Sequence {
  Request asks;  // without its prompt, which is in `tokens`
  QueuePlace place;
  int behind = 0;               // sequences of the same call that were here when this one came
  std::vector<TokenId> tokens;  // prompt, then output
  std::vector<BlockId> blocks;  // covers at least `computed` tokens
  int prompt_tokens = 0;
  int computed = 0;        // leading tokens with KV
  int planned = 0;         // leading tokens that have KV or are in a step; at least `computed`
  int scored = 1;          // leading tokens that need no score, or have it
  std::size_t cached = 0;  // leading blocks that are in the prefix cache
  bool cacheable = true;   // all its KV was computed at precision_tag
  int in_steps = 0;        // steps that are not complete; several only within a prompt
  bool failed = false;
  std::uint32_t precision_tag = 0;
  // Free blocks, and changes of the cache and of KV's size, when admission last failed. While
  // neither is more, admission would fail again; trying costs a walk over the prompt.
  struct Refused {
    std::int64_t free = -1;
    std::uint64_t changes = 0;
  };
  Refused refused;
  // The sequence waits until `held_by` has put held_until blocks into the prefix cache; 0: it does
  // not wait.
  RequestId held_by;
  std::size_t held_until = 0;
  TimeNs waiting_since_ns = 0;      // kept by WaitingQueue
  std::int64_t waiting_blocks = 0;  // too
  RequestUsage usage;

  int pending() const { return static_cast<int>(tokens.size()) - planned; }
  int uncomputed() const { return static_cast<int>(tokens.size()) - computed; }
  bool scheduled() const { return in_steps > 0; }
  bool ends_with_prompt() const { return asks.max_tokens == 0; }
  // True if chunks of the prompt may be in several steps at once: nothing is asked about them that
  // one chunk must know of the chunk before it.
  bool may_overlap() const { return !asks.logprobs.prompt && asks.pooling == Pooling::kNone; }

  int reusable() const;
};

// Returns how many of the first `tokens` tokens may come from the prefix cache. Tokens whose
// logprobs are asked for must be computed, and so must the last token, for its logits.
int reusable_tokens(const Request& asks, int tokens, int unscored_from);

// Appends to the plan the sequence's next `count` tokens, its first `block_count` blocks, and what
// to draw, score and pool.
void append_slice(StepPlan& plan, const Sequence& sequence, int count, int block_count);

}  // namespace protean
