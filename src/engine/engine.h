#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "base/units.h"
#include "contract/request.h"
#include "cost/step_time.h"
#include "engine/engine_state.h"
#include "engine/form_steering.h"
#include "engine/live_request.h"
#include "engine/morph_config.h"
#include "engine/precision_ledger.h"
#include "engine/queue_times.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "ports/token_sink.h"
#include "scheduler/scheduler.h"

namespace protean {

// The time within which a request without a deadline is due. Requests that are due earlier come
// before it, so that no request waits forever behind others of its priority.
inline constexpr TimeNs kDefaultFirstTokenNs = 10 * kNsPerS;

struct EngineConfig {
  SchedulerConfig scheduler;
  int max_in_flight = 1;             // steps started and not done; each pipeline stage needs one
  std::optional<MorphConfig> morph;  // without it, the form never changes
  StepCost step_cost;            // what steps of this model cost on this machine; all 0: not known
  StepCost path_cost;            // in a pipeline, through all stages; all 0: there is one stage
  StepPrecision step_precision;  // the form's precisions, if it never changes
  ReplicaId replica;             // written into every batch of outputs
};

// The state machine of one replica: takes events and produces steps and outputs. Decides when an
// answer ends (stop token, max_tokens, deadline, cancel, failure); the scheduler decides which
// sequences run. A request is refused (kExhausted) if its first token is predicted to miss its
// deadline, and ended by kTimeout once it would miss the deadline even if it began at once. Has no
// thread, clock or queue, so that server and simulator drive the same code. Single-threaded;
// executor and sink must outlive it.
class Engine {
 public:
  Engine(const EngineConfig& config, Executor& executor, TokenSink& sink);

  // Handles an event. Every Arrival is answered at once by Accepted or Refused, and every Accepted
  // later by exactly one Finished (invariant 7). Cancels of unknown or ended requests are ignored,
  // since a Cancel may be on its way when the request ends.
  void handle(Event event);

  // Returns the time at which a Tick should be sent if no other event comes before; nothing if none
  // is needed.
  std::optional<TimeNs> next_deadline_ns() const;

  // Predicts what becomes of a request that arrives now, or of a sequence that waits here or in
  // another engine. Costs a walk over the cached prefix, the running sequences and the queue.
  Prospect prospect(const Request& request, TimeNs now_ns) const;
  Prospect prospect(const Sequence& sequence) const;

  // Returns the first waiting sequence that another engine with so many free blocks could begin in
  // its place, see Scheduler. Valid until the next call.
  const Sequence* first_movable(std::int64_t free_blocks) const {
    return scheduler_.first_movable(free_blocks);
  }

  // Gives up a request that is in no step, and takes one that another engine gave up. Nothing tells
  // the client: the request's next outputs come from the engine that adopted it, with its usage,
  // times and deadlines. prospect() must not refuse an adopted sequence. `blocks`, from receive(),
  // hold its KV; without them its KV is computed again.
  MovedRequest release(RequestId request, TimeNs now_ns);
  void adopt(MovedRequest moved, std::vector<BlockId> blocks, TimeNs now_ns);

  // Gives up all requests, for adopt() of other engines, because the executor has failed or has
  // lost its KV. Steps in flight are forgotten: no StepDone of a step up to last_step() may follow.
  std::vector<MovedRequest> abandon(TimeNs now_ns);
  std::uint64_t last_step() const { return scheduler_.last_step(); }
  // Returns true while the executor runs a step or a commit of this engine.
  bool awaits_executor() const {
    return !started_.empty() || (steering_ && steering_->committing());
  }

  // Merging and parting. An engine whose steps are held starts none and handles all else as ever.
  void hold_steps() { held_ = true; }
  void go_on(TimeNs now_ns);
  // While the form is held, the policy does not change it once a morph that runs has ended, and no
  // WantForm may come.
  void hold_form(bool holds);
  // Ends a morph under way as soon as what is committed is done. Requires that the form is held.
  void call_off_morph(const std::string& why, TimeNs now_ns);
  // Returns the form at the precisions that a wish names, with as many KV blocks as fit if it names
  // none. Requires that the form may change.
  Result<Form> form_with(const FormWish& wish) const;
  // Goes to a form while it is held.
  Result<Morph> lead_form(const FormWish& wish, TimeNs now_ns);
  // After the hold, see FormSteering.
  void resume_form(TimeNs now_ns);
  // Returns true if an operator chose the precisions.
  bool pinned() const { return steering_ && steering_->pinned(); }
  bool at_pin() const { return !steering_ || steering_->at_pin(); }
  // For a fleet that weighs groups against lower precision; nothing if the form never changes.
  std::optional<FormView> form_view(TimeNs now_ns) const {
    return steering_ ? std::optional(steering_->view(now_ns)) : std::nullopt;
  }
  std::vector<Way> ways_down() const { return steering_->ways_down(); }
  // Lets the policy lower precision if it has decided so.
  void allow_lowering(TimeNs now_ns);
  // Returns true if no step is in flight and no KV is exchanged with another engine.
  bool quiet() const { return started_.empty() && !exchanges_kv(); }
  bool exchanges_kv() const { return scheduler_.exchanges_kv(); }
  // Returns false while the form is changing.
  bool form_at_rest() const { return !steering_ || !steering_->busy(); }
  // Returns the KV blocks of the form to which it goes.
  std::int64_t kv_blocks_ahead() const {
    return steering_ ? steering_->heading().kv.blocks : limits().kv_blocks;
  }
  // Returns the form that steps have from now on; nothing if it never changes.
  std::optional<Form> form() const;
  // Gives up and takes all requests, see Scheduler. The engine must be quiet. No output tells that
  // the requests have left until its next event, as they may come back before.
  EngineState release_all(TimeNs now_ns);
  void absorb(EngineState state, TimeNs now_ns);
  std::vector<BlockId> live_blocks() const { return scheduler_.live_blocks(); }
  // KV that is not worth moving, see Scheduler. The engine must be quiet and hold its steps.
  std::vector<OwnKv> own_kv() const { return scheduler_.own_kv(); }
  void give_up_kv(const std::vector<RequestId>& requests, TimeNs now_ns);
  void admit_again() { scheduler_.admit_again(); }
  bool admits_none() const { return scheduler_.admits_none(); }
  std::int64_t idle_blocks() const { return scheduler_.idle_blocks(); }
  void forget_idle() { scheduler_.forget_idle(); }
  // How fast steps are, as far as it is known, and at which precisions.
  const StepSpeed& speed() const { return times_.speed(); }
  const StepPrecision& step_precision() const { return times_.precision(); }
  // Succession, see Scheduler.
  bool kv_in_place() const { return kv_settled() && scheduler_.kv_in_place(); }
  std::vector<HeldBlock> held_blocks() const { return scheduler_.held_blocks(); }
  bool holds(const HeldBlock& held) const { return scheduler_.holds(held); }
  void lend(std::span<const BlockId> blocks) { scheduler_.lend(blocks); }
  std::int64_t longest() const { return scheduler_.longest(); }
  // Returns the totals that continue in the engine that takes over, without requests.
  EngineState counters() const;
  const SchedulerConfig& limits() const { return scheduler_.config(); }
  // Requests that need more blocks than `now` are refused, as kUnavailable up to `later`. An engine
  // whose form may change promises as much as that allows once its form is not held.
  void promise_kv(std::int64_t now, std::int64_t later) { scheduler_.set_largest_kv(now, later); }
  // Limits the tokens of each later step.
  void limit_steps(int tokens) { scheduler_.limit_steps(tokens); }

  // Takes a request that was accepted when it arrived and has waited elsewhere since. prospect()
  // must not refuse it.
  void begin_request(Request request, TimeNs arrived_ns, TimeNs now_ns);
  // Blocks of the longest request here when it ends.
  std::int64_t largest_need() const { return scheduler_.largest_need(); }

  // Live migration, see Scheduler. What ends a loan, a pause or a reservation may let other
  // sequences run, so it takes a time.
  std::vector<RequestId> decoding() const {
    return kv_settled() ? scheduler_.all_decoding() : std::vector<RequestId>();
  }
  std::optional<Scheduler::Decoding> decoding(RequestId request) const {
    return kv_settled() ? scheduler_.decoding(request) : std::nullopt;
  }
  // Devices come to a change of where KV lies before their next step. Until that is complete, no
  // request counts as decoding here.
  void await_step() { settled_by_step_ = scheduler_.last_step() + 1; }
  void pause(RequestId request) { scheduler_.pause(request); }
  void resume(RequestId request, TimeNs now_ns);
  std::vector<BlockId> lend(RequestId request, std::size_t first, std::size_t count) {
    return scheduler_.lend(request, first, count);
  }
  void give_back(std::span<const BlockId> lent, TimeNs now_ns);
  // Keeps a place for a sequence, and steps short meanwhile, since its KV comes between them.
  // Returns false if none is free, its KV finds no room now, or it could never run here.
  bool keep_place(const Scheduler::Decoding& sequence);
  bool has_room_for(const Scheduler::Decoding& sequence) const {
    return could_run(sequence) &&
           scheduler_.could_receive(ceil_div<std::int64_t>(sequence.computed, block_tokens_));
  }
  // False if the sequence could never run here, which an operator's form may have changed.
  bool could_run(const Scheduler::Decoding& sequence) const {
    return scheduler_.check_length(sequence.prompt_tokens, sequence.max_tokens).ok();
  }
  std::optional<std::vector<BlockId>> receive(std::int64_t blocks) {
    return scheduler_.receive(blocks);
  }
  // Returns true if what comes behind the started steps may wait for long: for one of them that
  // takes longer than steps do while a place is kept, or for a turn.
  bool computes_for_long() const;
  // Gives up a kept place and the blocks received for it.
  void drop(std::span<const BlockId> received, TimeNs now_ns);
  int block_tokens() const { return block_tokens_; }

  bool idle() const { return live_.empty() && started_.empty(); }
  Observation observe() const;

 private:
  struct StartedStep {
    TimeNs at_ns = 0;
    StepWork work;
    StepPrecision precision;
  };

  static std::vector<float> embedding_of(const LiveRequest& live);
  LiveRequest take_live(RequestId request);

  void on(Arrival& arrival);
  Status accept(Request request, TimeNs arrived_ns);
  void on(Cancel& cancel);
  void on(StepDone& done);
  void pool(Pooled& pooled);
  void take(Sampled& sampled);
  void on(MorphReady& ready);
  void on(MorphDone& done);
  void on(WantForm& want);
  void on(WantQuota& want);
  // Returns the label of the precision that drew the token.
  std::shared_ptr<const std::string> count(const Sampled& sampled, LiveRequest& live);
  void on(Tick&) {}
  void on(VariantsPacked& packed) {
    if (steering_) {
      steering_->packed(std::move(packed.packing));
    }
  }
  void on(DevicesFailed&);
  void on(BlocksCopied&);
  void on(WantMigration&);
  void on(WantGroups&);
  void begin(TimeNs now_ns);
  void settle();
  void limit_prompts();
  bool kv_settled() const { return scheduler_.last_step() - started_.size() >= settled_by_step_; }
  TimeNs expected_wait_ns();
  Prospect expect(int priority, TimeNs due_ns, const PromptWork& prompt) const;
  TimeNs due_ns_of(const Deadlines& deadlines, const PromptWork& prompt, TimeNs now_ns) const;
  TimeNs latest_start_ns(const Deadlines& deadlines, const PromptWork& prompt) const;
  void set_timer(RequestId request, LiveRequest& live);
  void expire();
  void start_steps();
  void finish(RequestId request, Finished finished);

  const ReplicaId replica_;
  const int block_tokens_;
  const int max_in_flight_;
  Scheduler scheduler_;
  Executor& executor_;
  TokenSink& sink_;
  std::unordered_map<RequestId, LiveRequest> live_;
  std::set<std::pair<TimeNs, RequestId>> timers_;
  std::unique_ptr<FormSteering> steering_;  // null: the form never changes
  QueueTimes times_;
  std::deque<StartedStep> started_;  // steps in flight
  TimeNs last_done_ns_ = 0;
  TimeNs now_ns_ = 0;  // the time of the event being handled
  OutputBatch batch_;  // the outputs of that event so far
  int step_tokens_ = 0;
  TimeNs expected_wait_ns_ = 0;
  TimeNs expected_at_ns_ = -1;  // when that was predicted
  bool held_ = false;
  std::uint64_t settled_by_step_ = 0;  // see await_step()
};

}  // namespace protean
