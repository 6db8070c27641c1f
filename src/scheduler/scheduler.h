#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
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
#include "scheduler/scheduler_state.h"
#include "scheduler/sequence.h"
#include "scheduler/step_budget.h"
#include "scheduler/waiting_queue.h"

namespace protean {

// Limits of one scheduler, which never change but for the KV cache.
struct SchedulerConfig {
  std::int64_t kv_blocks = 0;          // at the start
  std::int64_t largest_kv_blocks = 0;  // the KV cache may grow to this, if it is more
  int block_tokens = 16;
  int max_num_seqs = 256;             // sequences in one step
  int max_num_batched_tokens = 2048;  // tokens in one step; long prompts are cut into chunks
  int max_model_len = 0;              // prompt + output tokens of one request
  bool prefix_caching = true;
  // Steps among which ready work is divided: as many as a pipeline has stages.
  int steps_in_flight = 1;
  StepBalance balance;
};

struct Sampled {
  RequestId request;
  TokenId token = 0;
  std::uint32_t precision_tag = 0;        // the tag of the step that drew the token
  std::optional<TokenLogprobs> logprobs;  // if the request wants them
};

// Log-probabilities of prompt tokens from first_position on.
struct Scored {
  RequestId request;
  int first_position = 0;
  std::vector<TokenLogprobs> logprobs;
};

// One sequence's row of StepResult::pooled. A row with first_position 0 replaces the sum so far:
// the sequence was preempted within its prompt.
struct Pooled {
  RequestId request;
  int first_position = 0;
  std::vector<double> row;
};

// The work that comes before a request that arrives now.
struct Backlog {
  std::int64_t tokens = 0;  // prompt tokens, less the share that the prefix cache recently had
  int prompts = 0;          // prompts with such tokens
  double prompt_context_tokens = 0;  // positions that these tokens attend to, summed over tokens
  int decoding = 0;                  // sequences past their prompts
  int running = 0;
  // Waiting sequences, the new one included, without room in a step or in KV now.
  int without_place = 0;
  std::int64_t context_tokens = 0;    // tokens in KV of sequences past their prompts
  std::int64_t drawn_tokens = 0;      // tokens of their answers so far
  std::int64_t most_left_tokens = 0;  // tokens that all running answers may still get
};

// What one sequence has and may still need, for predictions.
struct SequenceNeed {
  bool has_kv = false;
  int tokens = 0;   // prompt and answer so far
  int pending = 0;  // tokens without KV
  int drawn = 0;    // tokens of the answer
  int most_drawn = 0;
};

// The KV blocks that sequences need now.
struct Demand {
  std::int64_t blocks_wanted = 0;  // needed by waiting sequences and next decodes, and not held
  std::int64_t blocks_short = 0;   // blocks_wanted less the free blocks
  TimeNs waiting_since_ns = -1;    // since when the sequence that waits longest waits; -1: none
};

// The KV of a running sequence that shares none with others.
struct OwnKv {
  RequestId request;
  std::int64_t blocks = 0;
  int tokens = 0;
};

// A block that holds KV, or is to hold that of a sequence.
struct HeldBlock {
  BlockId block = 0;
  std::uint64_t content = 0;  // see BlockPool::content()
  int tokens = 0;             // leading tokens with KV; the others are written by later steps
  bool idle = false;          // no sequence uses it: it is only cached
};

// The result of a step, by request.
struct StepOutcome {
  int tokens = 0;
  std::vector<Scored> scored;
  std::vector<Pooled> pooled;
  std::vector<Sampled> sampled;
  std::vector<RequestId> computed;  // requests that end with their prompt, which is computed
  std::vector<RequestFailure> failed;
};

// Plans the next step. Sequences are ordered by their place: priority, then due time, then arrival.
// Running sequences decode first; prompts get the rest of the token budget, in chunks. A prompt
// gets all its blocks when it is admitted, and waits while an earlier sequence computes a prefix
// that both share. If a decode finds no free block, the last sequence is preempted: it gives its
// blocks back, waits at its old place and is recomputed later, as far as the prefix cache has lost
// it. No request is aborted because KV is full (invariant 4): a sequence that only a larger KV
// could hold is passed over until KV is larger.
//
// Sequences of one API call, such as its choices, become due one after another: the second is due
// after twice the first one's time, the third after three times that. While a step or KV is full,
// all of them but the first give up their room to a waiting sequence of another call that comes
// before them.
//
// With several steps in flight, each takes such a share of the ready work that they take about
// equal times, so that the stages of a pipeline wait little for each other. If work is dealt
// longest first instead, waiting prompts of one priority may overtake each other, but never the
// first one.
//
// Knows no device, precision or text. Single-threaded; reads no clock.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  // Fails if a request with so many tokens could never run: too long for max_model_len or for the
  // largest KV.
  Status check_length(std::int64_t prompt, std::int64_t max_tokens) const;

  // Refuses a request whose length fails check_length(). Among equal priorities the one that is due
  // earlier comes first.
  Status add(Request request, TimeNs due_ns = 0, TimeNs now_ns = 0);

  // Returns the first waiting sequence that waits for no prefix and fits the present KV, or so many
  // free blocks elsewhere; null if there is none. Valid until the scheduler changes.
  const Sequence* first_movable(std::int64_t free_blocks) const;

  // Takes a sequence that is in no step out, for adopt() of another scheduler, and frees its
  // blocks. Its tokens, due time and usage stay.
  std::unique_ptr<Sequence> release(RequestId request);
  // Adds a sequence that another scheduler released, behind those with the same due time. It must
  // pass check_length(). `blocks`, from receive(), hold its KV and take the place that was kept for
  // it; without them it waits, and its KV is computed again.
  void adopt(std::unique_ptr<Sequence> sequence, std::vector<BlockId> blocks, TimeNs now_ns);

  // Merging and parting (AMOEBA section 3, KunServe section 4). Both require that no step is in
  // flight, no KV is exchanged with another scheduler and KV does not shrink.

  // Gives up all sequences and all cached blocks of the present precisions. The scheduler is empty
  // then, keeps its counters, and has forgotten all cached blocks.
  SchedulerState release_all();
  // Returns what such a state has without sequences and blocks.
  SchedulerState counters() const {
    return {.last_step = latest_.step, .hit_share = hit_share_, .totals = totals_};
  }
  // Takes a state whose blocks are all here, with its KV. The scheduler must be empty. Sequences
  // that computed the same blocks share them afterwards.
  void absorb(SchedulerState state);
  // Returns the blocks that hold KV: those that sequences use and those that are cached.
  std::vector<BlockId> live_blocks() const;

  // Requests whose KV is not worth moving while replicas change their groups.

  // Returns the KV of running sequences that share none, in order of their places.
  std::vector<OwnKv> own_kv() const;
  // Preempts running sequences and takes their blocks out of the prefix cache, where a preemption
  // leaves them. The sequences must be in no step. Until admit_again(), or until another scheduler
  // absorbs them, no sequence is admitted: none overtakes them, and there is no new KV that would
  // have to move.
  void give_up_kv(const std::vector<RequestId>& requests);
  void admit_again() { exchange_.admits_none = false; }
  bool admits_none() const { return exchange_.admits_none; }
  // Returns the blocks that are only cached.
  std::int64_t idle_blocks() const;
  // Forgets what they hold.
  void forget_idle();

  // Succession: another scheduler takes the place of this one with a copy of its KV.

  // Returns false if blocks have moved within this scheduler and no step has ended since, so that
  // their content may not be where it belongs.
  bool kv_in_place() const { return completed() >= exchange_.moved_before_step; }
  // Returns the blocks of sequences, in order of their places, then those that are cached at the
  // present precisions, the latest used first. Returns none unless kv_in_place().
  std::vector<HeldBlock> held_blocks() const;
  // Returns true if the block still holds what it held, and that is of use.
  bool holds(const HeldBlock& held) const {
    return pool_.content(held.block) == held.content &&
           (pool_.references(held.block) > 0 || cache_.has(held.block));
  }
  // Keeps the content of blocks until give_back(), also if their sequences end meanwhile.
  void lend(std::span<const BlockId> blocks);
  std::int64_t longest() const;  // tokens of the longest sequence here when it ends

  // Gives up all sequences, in order of their places, and all KV, also in the middle of steps: what
  // the steps in flight bring is lost and must not be passed to complete(). The sequences keep
  // their tokens, for adopt() of another scheduler.
  std::vector<std::unique_ptr<Sequence>> abandon();
  // The number of the latest step.
  std::uint64_t last_step() const { return latest_.step; }

  // Live migration (Llumnix): the KV of a sequence that decodes is copied while it goes on, except
  // for the last blocks, for which it pauses.

  // Returns the state of a sequence that decodes; nothing if it is unknown, waits or computes its
  // prompt, or while blocks are moved for a smaller KV cache.
  struct Decoding {
    std::int64_t computed = 0;  // leading tokens with KV
    int prompt_tokens = 0;
    int max_tokens = 0;
    int preemptions = 0;  // so far
    bool in_step = false;
  };
  std::optional<Decoding> decoding(RequestId request) const;
  // Returns what decodes: what comes last by priority first, among equals the shortest first.
  std::vector<RequestId> all_decoding() const;
  // Keeps a decoding sequence out of later steps, until it is preempted, released or resumed.
  void pause(RequestId request);
  void resume(RequestId request) { std::erase(exchange_.paused, request); }
  // Returns `count` blocks of a decoding sequence from its block number `first` on, and keeps their
  // content until give_back(), whatever becomes of the sequence.
  std::vector<BlockId> lend(RequestId request, std::size_t first, std::size_t count);
  void give_back(std::span<const BlockId> lent);

  // Returns true if receive() would give so many blocks now.
  bool could_receive(std::int64_t count) const {
    return !shrinking() && pool_.free() >= count + free_reserve();
  }
  // Keeps a place in steps for a sequence that will be adopted. Returns false if none is free.
  bool keep_place();
  void give_up_place() { --exchange_.kept_places; }
  bool keeps_places() const { return exchange_.kept_places > 0; }
  // Takes free blocks for KV that arrives; nothing if sequences here would soon lack them.
  std::optional<std::vector<BlockId>> receive(std::int64_t count);
  // Frees received blocks whose sequence will not be adopted.
  void drop(std::span<const BlockId> received);
  // Returns true while a sequence is paused, or blocks or places are kept, so that sequences may
  // wait though nothing runs.
  bool exchanges_kv() const {
    return !exchange_.lent.empty() || !exchange_.paused.empty() || exchange_.kept_places > 0;
  }

  // Removes a sequence in any state and frees its blocks at once. A step that computes it may still
  // run: steps execute in order, so the next user of the blocks writes after it. Returns the
  // sequence's usage so far; nothing if the request is unknown.
  std::optional<RequestUsage> remove(RequestId request);

  // Returns the due time of a sequence, which is later if its call has others.
  TimeNs due_ns(RequestId request) const { return sequences_.at(request)->place.due_ns; }
  // Returns the due time that add() would give a request.
  TimeNs due_of(const Request& request, TimeNs due_ns, TimeNs now_ns) const;

  // Returns the next step, or nothing if no sequence can run now. A sequence is in one step at a
  // time; only consecutive chunks of one prompt may be in several, if there are several.
  std::optional<StepPlan> next_step(TimeNs now_ns = 0);

  // Must be called once for each step, in the order of next_step().
  StepOutcome complete(StepResult result);

  // Limits the prompt tokens of each later step; the least limit is 1.
  void limit_prompts(int tokens) { budget_.limit_prompts(tokens); }
  // Limits all tokens of each later step.
  void limit_steps(int tokens) { budget_.limit_steps(tokens); }

  // Sets the precisions of later steps. Blocks of other precisions are not reused (invariant 5).
  void set_precision_tag(std::uint32_t tag) { precision_tag_ = tag; }

  // The KV cache changes size at its end. Before grow_kv(), the new blocks must be there. After
  // begin_shrink(), the next change may begin only when the shrink is finished or cancelled.
  void grow_kv(std::int64_t blocks);
  // From now on, blocks from `blocks` on are neither allocated nor reused.
  void begin_shrink(std::int64_t blocks);
  // Moves up to `limit` leaving blocks to free ones, in every block table. Their content must be
  // copied after the steps planned so far and before any later step.
  std::vector<BlockMove> next_moves(std::int64_t limit);
  // Preempts the last sequence if leaving blocks find no free block to move to.
  bool preempt_for_shrink();
  bool shrinking() const { return pool_.limit() < pool_.total(); }
  bool shrink_ready() const { return shrinking() && pool_.leaving() == 0; }
  void finish_shrink();
  void cancel_shrink();

  // Sets what KV may grow to from now on, and what it may grow to once an operator releases the
  // form or replicas have changed their groups. Requests between the two are refused as
  // kUnavailable. Sequences that are here may need more than either.
  void set_largest_kv(std::int64_t now, std::int64_t released) { largest_kv_ = {now, released}; }
  std::int64_t largest_need() const;  // blocks of the longest sequence here when it ends
  Demand demand() const;              // O(1)
  // Returns true if no sequence runs and all that wait need a larger KV.
  bool waits_for_larger_kv() const;
  std::vector<SequenceNeed> needs() const;   // one of each sequence
  std::vector<RequestId> too_large() const;  // waiting requests that need a larger KV
  bool has_too_large() const { return too_large_by_ > 0; }  // the last next_step() met one; O(1)

  // Returns the number of prompt tokens that the prefix cache does not have now.
  std::int64_t tokens_to_compute(const Request& request) const;
  std::int64_t tokens_to_compute(const Sequence& sequence) const;
  std::int64_t tokens_to_compute(RequestId request) const {
    return tokens_to_compute(*sequences_.at(request));
  }

  // Returns the work before a request with this place and so many tokens to compute, which need not
  // be here yet.
  Backlog backlog_before(int priority, TimeNs due_ns, std::int64_t tokens) const;
  Backlog backlog() const;  // before a request that comes last

  // Returns the share of recent prompts' tokens that the prefix cache had.
  double prefix_hit_share() const { return hit_share_; }

  bool idle() const { return sequences_.empty(); }
  const SchedulerConfig& config() const { return config_; }
  Observation observe() const;

 private:
  struct InFlight {
    StepId id;
    std::uint32_t precision_tag = 0;
    std::vector<SequenceSlice> slices;
    std::size_t samples = 0;
    std::size_t scores = 0;
    double cost = 0;  // by StepBalance
  };

  // A waiting sequence, and what it needs when it is admitted.
  struct Newcomer {
    Sequence* sequence = nullptr;
    int tokens = 0;           // to compute
    std::int64_t blocks = 0;  // that are free now
  };

  // The blocks that KV may grow to, see set_largest_kv().
  struct LargestKv {
    std::int64_t now = 0;
    std::int64_t released = 0;
  };

  // What live migrations and changes of groups hold here.
  struct Exchange {
    std::vector<BlockId> lent;  // once for each loan
    std::vector<RequestId> paused;
    bool admits_none = false;      // see give_up_kv()
    std::int64_t kept_places = 0;  // places kept for sequences to be adopted
    // Blocks that move within this scheduler are copied before this step, and devices whose homes
    // become one find them by their new ids from this step on. So their content is not in place
    // until it is complete.
    std::uint64_t moved_before_step = 0;
  };

  std::vector<BlockId> match(const CacheScope& scope, std::span<const TokenId> tokens) const;
  std::int64_t uncached(const CacheScope& scope, std::span<const TokenId> tokens,
                        int reusable) const;
  std::uint64_t completed() const {
    return in_flight_.empty() ? latest_.step : in_flight_.front().id.value - 1;
  }
  std::int64_t blocks_for(std::int64_t tokens) const;
  std::int64_t blocks_to_end(std::int64_t prompt, std::int64_t max_tokens) const;
  CacheScope scope_of(const Sequence& sequence) const;
  int tokens_left_at(const QueuePlace& place) const;
  Sequence* to_displace(const Sequence& waiting);
  void displace_for_waiting();
  bool must_wait(Sequence& sequence, int& passed_over);
  bool enter(Sequence& sequence);
  void schedule_decodes(StepPlan& plan, int most);
  void schedule_decodes(StepPlan& plan, std::map<QueuePlace, Sequence*>::iterator from, int most);
  void schedule_prefills(StepPlan& plan);
  void admit_waiting(StepPlan& plan);
  bool waits_for_prefix(Sequence& sequence);
  bool fits_now(const Sequence& sequence);
  bool lacks_block(const Sequence& sequence) const;
  bool is_paused(const Sequence& sequence) const;
  std::int64_t free_reserve() const;
  std::uint64_t changes() const { return cache_.insertions() + kv_changes_; }
  void enqueue(Sequence& sequence);
  void leave_call(const Sequence& sequence);
  void leave(Sequence& sequence);
  bool will_publish(const Sequence& sequence, std::size_t blocks) const;
  bool admit(Sequence& sequence);
  bool grow(Sequence& sequence);
  bool make_room(Sequence& sequence);
  std::unordered_map<BlockId, BlockId> absorb_cached(const SchedulerState& state);
  void absorb_sequence(std::unique_ptr<Sequence> sequence, bool runs);
  bool preempt_last();
  void preempt(Sequence& sequence);
  // Returns true if trying to admit the sequence would fail as it did last.
  bool is_refused(const Sequence& sequence) const {
    return pool_.free() <= sequence.refused.free && changes() == sequence.refused.changes;
  }
  bool takes_of(std::int64_t& free, Sequence& sequence) const;
  int divide_ready_work();
  bool deals_work() const { return config_.steps_in_flight > 1 && config_.balance.longest_first; }
  int decodes_dealt() const;
  Newcomer as_newcomer(Sequence& sequence) const;
  std::vector<Newcomer> newcomers(int longest, bool has_long, std::int64_t tokens);
  void schedule_dealt(StepPlan& plan, bool admits);
  bool may_schedule(const Sequence& sequence) const;
  bool may_decode(const Sequence& sequence) const;
  void schedule(StepPlan& plan, Sequence& sequence);
  void schedule(StepPlan& plan, Sequence& sequence, int count);
  void advance(Sequence& sequence, const SequenceSlice& slice, StepResult& result,
               StepOutcome& outcome);
  void publish_blocks(Sequence& sequence);
  void forget_blocks(const Sequence& sequence);
  void release(BlockId block);
  void release_blocks(Sequence& sequence);
  bool has_room(const StepPlan& plan) const;
  std::int64_t free_places() const {
    return admits_none() ? 0 : config_.max_num_seqs - exchange_.kept_places - std::ssize(running_);
  }
  bool has_place() const { return free_places() > 0; }

  const SchedulerConfig config_;
  BlockPool pool_;
  PrefixCache cache_;
  std::uint32_t precision_tag_ = 0;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::unordered_map<RequestId, int> of_call_;  // sequences that are here, by Request::call
  WaitingQueue waiting_;
  std::map<QueuePlace, Sequence*> running_;
  Exchange exchange_;
  std::int64_t decodes_short_ = 0;  // running sequences whose next token needs a new block
  std::int64_t too_large_by_ = 0;   // blocks that KV lacks for the largest sequence alone
  LargestKv largest_kv_;
  std::uint64_t kv_changes_ = 0;
  TimeNs now_ns_ = 0;  // the time of the latest call that passed one
  std::deque<InFlight> in_flight_;
  struct Latest {
    std::uint64_t arrival = 0;
    std::uint64_t step = 0;
    QueuePlace decode;  // of the sequence that decodes in a step
  };
  Latest latest_;
  StepBudget budget_;
  double hit_share_ = 0;  // share of recent prompts' tokens that the prefix cache had
  Observation totals_;    // only the *_total fields
};

}  // namespace protean
