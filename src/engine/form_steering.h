#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "contract/memory_use.h"
#include "contract/morph.h"
#include "contract/request.h"
#include "control/morph_policy.h"
#include "control/paper_rule.h"
#include "engine/load_watch.h"
#include "engine/memory_trade.h"
#include "engine/morph_config.h"
#include "engine/morph_run.h"
#include "engine/precision_ledger.h"
#include "engine/queue_times.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "ports/token_sink.h"
#include "scheduler/scheduler.h"

namespace protean {

// What a replica has counted of its forms, for operators.
struct FormCounts {
  MorphRun::Totals morphs;
  std::vector<TokensAt> output_tokens;  // by precision
};

// What goes on when another engine takes this one's place.
struct SteeringState {
  std::optional<FormCounts> counts;        // nothing: that engine has its own
  FormWish policy;                         // mode and quality floor
  std::optional<FormWish> pin;             // the precisions that an operator chose
  std::shared_ptr<const Packing> packing;  // the latest, which is the same for all engines
};

// What a fleet needs to know of a replica to predict it in groups.
struct FormView {
  Load load;
  Way way;
  double copy_bytes_per_s = 0;
};

// Steers a replica's form: watches its load, asks the policy, answers operators' wishes, also about
// the policy itself, and runs the morphs that follow. A wish pins the form until it is released, or
// until its morph fails. Requests are promised only as much KV as a form has that can still be
// reached, and a wish that would break such a promise is refused. Without a policy, KV gets the
// pages that a morph which fails leaves free. If the model shares its devices with others, KV gives
// up pages for them and takes theirs, but requests are promised only what the model's own pages
// hold. Single-threaded; executor, scheduler and times outlive it.
class FormSteering {
 public:
  FormSteering(const MorphConfig& config, const SchedulerConfig& limits, Executor& executor,
               Scheduler& scheduler, QueueTimes& times);
  FormSteering(const FormSteering&) = delete;
  FormSteering& operator=(const FormSteering&) = delete;

  // Sets the time of the events that follow; a time that goes back counts as the latest.
  void at(TimeNs now_ns) { now_ns_ = std::max(now_ns_, now_ns); }
  void on(const MorphReady& ready);
  void on(const MorphDone& done);
  WishAnswered on(const WantForm& want);
  void on(const WantQuota& want);
  void packed(std::shared_ptr<const Packing> packing);
  void arrived(std::int64_t prompt_tokens) { watch_.arrived(now_ns_, prompt_tokens); }
  StepWork work_of_step(const StepPlan& plan) const { return work_of(plan, config_.bounds.spec); }
  void step_started() {
    run_.step_started();
    ++passes_.in_flight;
  }
  void step_done(TimeNs took_ns) {
    run_.step_took(took_ns);
    --passes_.in_flight;
    passes_.one_ended = true;
  }
  void first_token(TimeNs ttft_ns) { watch_.first_token(now_ns_, ttft_ns); }
  void next_token(TimeNs tpot_ns) { watch_.next_token(now_ns_, tpot_ns); }
  std::shared_ptr<const std::string> drawn(std::uint32_t tag, PrecisionLedger::Counts& counts) {
    return ledger_.count(tag, counts);
  }

  // Commits what is ready; called before steps are planned.
  void advance() { advance(false); }
  // Decides what form the load calls for; called after steps are planned.
  void observe(const Observation& observation);
  // Moves any number of blocks; called if no step is in flight that would wait for them.
  void advance_quietly() { advance(true); }

  // Keeps the form as it is once a morph that runs has ended. Requires that no wish comes.
  void hold(bool holds) { run_.hold(holds); }
  // Drops the steps of the morph under way that are not committed.
  void call_off(const std::string& why) {
    run_.call_off(why, now_ns_);
    pace_.bytes = 0;
  }
  // Goes to a form for the fleet, which holds it. An operator's wish stays, for resume().
  Result<Morph> lead_to(const FormWish& wish);
  // Goes on after the fleet's hold: to the form that an operator chose, if there is one. Without
  // one, and without a policy, KV gets all pages that are free.
  void resume();
  // Returns the form that a wish names: with as many KV blocks as fit if it names none.
  Result<Form> form_of(const FormWish& wish) const;
  bool pinned() const { return pin_.has_value(); }
  // Returns false if it rests at other precisions than an operator chose.
  bool at_pin() const;
  FormView view(TimeNs now_ns) const;
  // Returns the ways to forms of lower precision that the policy may choose.
  std::vector<Way> ways_down() const;
  // Returns true if the latest decision was to lower precision, which the fleet has to allow
  // (MorphConfig::weighed).
  bool wants_lowering() const { return decided_.lowering.has_value(); }
  void allow_lowering();
  bool busy() const { return run_.busy(); }
  bool committing() const { return run_.committing(); }
  const Form& committed() const { return run_.committed(); }
  // Returns the form to which the morph under way leads.
  Form heading() const { return run_.wanted(); }

  std::optional<TimeNs> next_deadline_ns(bool idle) const;
  // Returns requests that only a larger KV could hold, if none has come in time.
  std::vector<RequestId> given_up() const;

  SteeringState state() const;
  // Takes the place of another engine, and tells its status again.
  void absorb(SteeringState state);

  std::vector<TokensAt> named(const PrecisionLedger::Counts& counts) const {
    return ledger_.named(counts);
  }
  // Returns null unless something has changed; tokens alone count once a second.
  std::shared_ptr<const FormStatus> status_if_changed();
  // Returns what the model has and needs, if it shares its devices with others and they are to know
  // it again.
  std::optional<MemoryUse> memory_if_due(const Observation& observation);

 private:
  bool policy_rules() const { return config_.mode != MorphMode::kOff && !pin_ && !run_.holds(); }
  void advance(bool quiet);
  bool at_rest() const;
  Load load(TimeNs now_ns) const;
  Load foreseen() const;
  std::int64_t needed_blocks() const;
  Situation situation() const;
  void decide(TimeNs expected_wait_ns);
  void watch_pressure();
  std::int64_t idle_blocks_for(const Wanted& wanted) const;
  void go_towards(const Wanted& wanted);
  Form with_kv_in(Form form, std::int64_t pages) const;
  Form with_free_pages(Form form) const {
    return with_kv_in(std::move(form), config_.bounds.budget.pages);
  }
  bool frees_pages(const Form& to) const;
  bool may_preempt(const Form& to) const;
  void take_free_pages();
  Status check_precisions(const FormWish& wish) const;
  Result<Morph> grant(const FormWish& wish);
  Result<Morph> grant_release();
  Result<Morph> grant_rest(const FormWish& wish);
  void set_policy(const FormWish& wish);
  void renew_policy();
  Result<Morph> grant_policy(const FormWish& wish);
  Result<Morph> go_to(const Form& form, const std::string& reason, std::int64_t kv_later = 0);
  void end_pin();
  std::int64_t largest_kv(const MorphPolicy& policy, MorphMode mode) const;
  void promise_kv();
  std::int64_t own_pages() const;
  std::int64_t pages_needed(std::int64_t blocks) const;
  bool memory_is_open() const;
  bool kv_comes_back() const;
  bool own_memory_suffices() const;
  bool awaits_memory();
  std::int64_t needs_to_tell(std::int64_t blocks);
  void follow_quota();
  void take_quota(std::int64_t pages);
  std::optional<TimeNs> gives_up_ns() const;

  MorphConfig config_;
  MemoryTrade memory_;
  Scheduler& scheduler_;
  QueueTimes& times_;
  PrecisionLedger ledger_;
  MorphRun run_;
  MorphPolicy policy_;
  struct {
    PaperRule rule;  // MorphServe's, which looks at each forward pass
    int in_flight = 0;
    bool one_ended = false;  // and the rule has not looked yet
    bool undecided = false;  // the rule has looked since the latest decision
  } passes_;
  LoadWatch watch_;
  TimeNs now_ns_ = 0;
  TimeNs next_decision_ns_ = 0;
  TimeNs changed_ns_;  // when the form last changed, or a change was called off
  struct FailedSwap {  // or one that was called off, since KV had no room for it
    SwapComponent swap;
    TimeNs until_ns = 0;
  };
  std::vector<FailedSwap> failed_;
  std::shared_ptr<const Packing> packing_;  // null: every variant is at hand
  struct Pace {                             // at which variants are read
    double bytes_per_s = 0;
    double bytes = 0;  // what the morph under way copies; 0: not to be learned from
    TimeNs began_ns = 0;
  } pace_;
  struct {
    Load load;
    TimeNs expected_wait_ns = 0;
    std::vector<FormPrediction> predictions;
    bool rests = false;              // no form could be better, so that none was weighed
    std::optional<Wanted> lowering;  // what is wanted, if the fleet has to allow it
  } decided_;                        // of the latest decision, at most 0.1 s ago
  TimeNs larger_kv_since_ns_ = -1;   // since when a request waits for a larger KV; -1: none does
  std::optional<FormWish> pin_;      // an operator's precisions, until released or out of reach
  // Counts changes of owner, policy and packing, which the run does not count.
  std::uint64_t changes_ = 1;
  struct Told {  // in the latest status
    std::uint64_t changes = 0;
    std::int64_t tokens = 0;
    TimeNs at_ns = 0;
  } told_;
};

}  // namespace protean
