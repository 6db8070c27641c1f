#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/units.h"
#include "contract/request.h"
#include "contract/step.h"

namespace protean {

// A sequence's place among all others, from its arrival to its end; the smaller, the earlier.
struct QueuePlace {
  int priority = 0;
  TimeNs due_ns = 0;  // when it should begin at the latest
  std::uint64_t arrival = 0;

  friend auto operator<=>(const QueuePlace&, const QueuePlace&) = default;
};

// A request on its way, as the scheduler keeps it.
struct Sequence {
  Request asks;  // but its prompt, which is in `tokens`
  QueuePlace place;
  int behind = 0;               // sequences of the same client that were here when this one came
  std::vector<TokenId> tokens;  // prompt, then output
  std::vector<BlockId> blocks;  // covers at least `computed` tokens
  int prompt_tokens = 0;
  int computed = 0;        // leading tokens whose KV is there
  int scored = 1;          // leading tokens that need no score (any more), where scores are wanted
  std::size_t cached = 0;  // leading blocks that the prefix cache knows
  bool cacheable = true;   // all KV so far was computed at precision_tag
  bool scheduled = false;  // in a plan not yet completed
  std::uint32_t precision_tag = 0;
  // Free blocks, and what the cache and the size of KV had gone through, when admission last
  // failed: while neither is more, it would fail again, and finding that out costs a walk over the
  // prompt.
  std::int64_t refused_at_free = -1;
  std::uint64_t refused_at_changes = 0;
  // It waits until this running sequence has published so many blocks; 0: it does not.
  RequestId held_by;
  std::size_t held_until = 0;
  TimeNs waiting_since_ns = 0;
  RequestUsage usage;

  int pending() const { return static_cast<int>(tokens.size()) - computed; }
  bool ends_with_prompt() const { return asks.max_tokens == 0; }

  int reusable() const;
};

// How many of so many leading tokens may come from the prefix cache: those whose rows nobody asks
// for. The last token is always computed: its logits are wanted.
int reusable_tokens(const Request& asks, int tokens, int unscored_from);

// Appends the next `count` tokens of the sequence, its first `block_count` blocks, and what is to
// be drawn, scored and pooled of them.
void append_slice(StepPlan& plan, const Sequence& sequence, int count, int block_count);

}  // namespace protean
