#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "contract/request.h"
#include "contract/step.h"
#include "scheduler/block_pool.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/sequence.h"
#include "scheduler/token_budget.h"

namespace protean {

struct SchedulerConfig {
  std::int64_t kv_blocks = 0;
  std::int64_t largest_kv_blocks = 0;  // that KV may ever grow to, where that is more
  int block_tokens = 16;
  int max_num_seqs = 256;             // sequences in one step
  int max_num_batched_tokens = 2048;  // token budget of one step; long prompts are cut into chunks
  int max_model_len = 0;              // prompt + output tokens of one request
  bool prefix_caching = true;
};

struct Sampled {
  RequestId request;
  TokenId token = 0;
  std::uint32_t precision_tag = 0;        // of the step that drew it
  std::optional<TokenLogprobs> logprobs;  // where the request wants them
};

// Likelihoods of prompt tokens from first_position on.
struct Scored {
  RequestId request;
  int first_position = 0;
  std::vector<TokenLogprobs> logprobs;
};

// What StepResult::pooled says of one sequence. A slice that begins at position 0 begins anew: the
// sequence was preempted within its prompt.
struct Pooled {
  RequestId request;
  int first_position = 0;
  std::vector<double> row;
};

// What is to be done before a request that comes now.
struct Backlog {
  std::int64_t tokens = 0;  // of prompts to compute, less what the prefix cache usually has of them
  int prompts = 0;          // that these are of
  int decoding = 0;
  int running = 0;
  int without_place =
      0;  // waiting sequences, it included, that find no room in a step or in KV now
};

// What the sequences that are here want of KV now.
struct Demand {
  std::int64_t blocks_wanted = 0;  // that those waiting and the next decodes need and do not hold
  std::int64_t blocks_short = 0;   // of those, what is not free to be had
  TimeNs waiting_since_ns = -1;    // of the sequence waiting longest, -1 if none
  // The last step took as many tokens as it might: more KV would not have made it larger.
  bool step_full = false;
};

// What became of a step.
struct StepOutcome {
  int tokens = 0;
  std::vector<Scored> scored;
  std::vector<Pooled> pooled;
  std::vector<Sampled> sampled;
  std::vector<RequestId> computed;  // whose prompt is done and who wants no more
  std::vector<RequestId> failed;    // of a step that could not be executed
};

// Who runs in the next step. Sequences come and go by their place: priority, then due time, then
// arrival; running ones decode first, then prompts get what is left of the token budget, in chunks.
// A prompt takes all its blocks when it is admitted, and waits while a sequence before it is still
// computing a prefix that both share. When a decode finds no block, the last sequence is preempted:
// its blocks go back, it waits at its old place and recomputes later (what is still in the prefix
// cache is not computed again). Nothing is ever aborted for want of KV (invariant 4): what only a
// larger KV could hold is passed over until there is one.
// Knows no device, no precision, no text. Single-threaded, reads no clock.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  // Refuses what could never run: too long for max_model_len or for the largest KV. Among equal
  // priorities what is due earlier comes first.
  Status add(Request request, TimeNs due_ns = 0, TimeNs now_ns = 0);

  // Forgets a sequence wherever it is, and frees its blocks at once. A step that is computing it
  // may go on: steps execute in order, so whoever gets the blocks next writes after it. Usage is
  // what the sequence cost so far; nothing if it is not here.
  std::optional<RequestUsage> remove(RequestId request);

  // The next step, or nothing when no sequence can run now. A sequence is in one step at a time.
  std::optional<StepPlan> next_step(TimeNs now_ns = 0);

  // To be called once for each step, in order.
  StepOutcome complete(StepResult result);

  // From the next step on, each takes at most so many tokens of prompts, one at least.
  void limit_prompts(int tokens) { budget_.limit_prompts(tokens); }

  // From the next step on, KV is computed at other precisions: blocks computed before are not
  // reused for what is computed after (invariant 5).
  void set_precision_tag(std::uint32_t tag) { precision_tag_ = tag; }

  // The KV cache changes size at its end; a larger one is there when this is called. A shrink is
  // over once finished or cancelled, and only then may the next change begin.
  void grow_kv(std::int64_t blocks);
  // Blocks from this on are neither handed out nor reused any more.
  void begin_shrink(std::int64_t blocks);
  // Up to so many blocks in use that leave, with the free ones that take their content and their
  // place in every table as of now: to be copied after the steps planned so far, before any other.
  std::vector<BlockMove> next_moves(std::int64_t limit);
  // Gives up the last sequence's blocks for those that leave, if they cannot move otherwise.
  bool preempt_for_shrink();
  bool shrinking() const { return pool_.limit() < pool_.total(); }
  bool shrink_ready() const { return shrinking() && pool_.leaving() == 0; }
  void finish_shrink();
  void cancel_shrink();

  // What KV may grow to from now on, at most. Sequences that are here may need more.
  void set_largest_kv(std::int64_t blocks) { largest_kv_blocks_ = blocks; }
  std::int64_t largest_need() const;  // blocks of the longest sequence that is here, at its end
  Demand demand() const;              // O(1)
  // Nothing runs or can run, and those who wait need a larger KV.
  bool waits_for_larger_kv() const;
  std::vector<RequestId> too_large() const;                 // those who wait for that
  bool has_too_large() const { return too_large_by_ > 0; }  // of late, O(1)

  // How many tokens of a prompt the prefix cache does not have now.
  std::int64_t tokens_to_compute(const Request& request) const;
  std::int64_t tokens_to_compute(RequestId request) const;

  // Of a request that is due then and has so many tokens to compute, whether it is here yet or not.
  Backlog backlog_before(int priority, TimeNs due_ns, std::int64_t tokens) const;
  Backlog backlog() const;  // before whoever comes last in order

  bool idle() const { return sequences_.empty(); }
  Observation observe() const;

 private:
  struct InFlight {
    StepId id;
    std::uint32_t precision_tag = 0;
    std::vector<SequenceSlice> slices;
    std::size_t samples = 0;
    std::size_t scores = 0;
  };

  std::vector<BlockId> match(const CacheScope& scope, std::span<const TokenId> tokens) const;
  std::int64_t uncached(const CacheScope& scope, std::span<const TokenId> tokens,
                        int reusable) const;
  std::int64_t blocks_for(std::int64_t tokens) const;
  std::int64_t blocks_to_end(std::int64_t prompt, std::int64_t max_tokens) const;
  CacheScope scope_of(const Sequence& sequence) const;
  void schedule_decodes(StepPlan& plan);
  void schedule_prefills(StepPlan& plan);
  void admit_waiting(StepPlan& plan);
  bool waits_for_prefix(Sequence& sequence);
  bool fits_now(const Sequence& sequence);
  bool lacks_block(const Sequence& sequence) const;
  std::uint64_t changes() const { return cache_.insertions() + kv_changes_; }
  void enqueue(Sequence& sequence);
  void dequeue(Sequence& sequence);
  void leave(Sequence& sequence);
  bool will_publish(const Sequence& sequence, std::size_t blocks) const;
  bool admit(Sequence& sequence);
  bool grow(Sequence& sequence);
  bool make_room(Sequence& sequence);
  bool preempt_last();
  void preempt(Sequence& sequence);
  void schedule(StepPlan& plan, Sequence& sequence);
  void advance(Sequence& sequence, const SequenceSlice& slice, StepResult& result,
               StepOutcome& outcome);
  void publish_blocks(Sequence& sequence);
  void release(BlockId block);
  void release_blocks(Sequence& sequence);
  bool has_room(const StepPlan& plan) const;

  const SchedulerConfig config_;
  BlockPool pool_;
  PrefixCache cache_;
  std::uint32_t precision_tag_ = 0;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::map<QueuePlace, Sequence*> waiting_;
  std::map<QueuePlace, Sequence*> running_;
  std::set<std::pair<TimeNs, std::uint64_t>> waiting_since_;  // and arrivals
  std::int64_t waiting_blocks_ = 0;                           // that those waiting need
  std::int64_t decodes_short_ = 0;  // running ones whose next token needs a block
  std::int64_t too_large_by_ = 0;   // blocks that KV lacks for a single sequence
  std::int64_t largest_kv_blocks_;
  std::uint64_t kv_changes_ = 0;
  TimeNs now_ns_ = 0;  // of the latest call that told
  std::deque<InFlight> in_flight_;
  std::uint64_t last_arrival_ = 0;
  std::uint64_t last_step_ = 0;
  TokenBudget budget_;
  double hit_share_ = 0;  // of recent prompts' tokens that were cached
  Observation totals_;    // the *_total fields only
};

}  // namespace protean
