#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "contract/morph.h"
#include "contract/request.h"
#include "control/monitor.h"
#include "control/morph_policy.h"
#include "engine/morph_config.h"
#include "engine/morph_run.h"
#include "engine/precision_ledger.h"
#include "engine/wait_estimate.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "ports/token_sink.h"
#include "scheduler/scheduler.h"

namespace protean {

// Steers a replica's form: keeps its monitor, asks the policy, answers operators' wishes and runs
// the morphs that follow. A wish pins the form until it is released, or until its morph fails. Only
// as much KV is promised to requests as a form can get to that somebody may still ask for.
// Single-threaded; executor and scheduler outlive it.
class FormSteering {
 public:
  FormSteering(const MorphConfig& config, const SchedulerConfig& limits, Executor& executor,
               Scheduler& scheduler);
  FormSteering(const FormSteering&) = delete;
  FormSteering& operator=(const FormSteering&) = delete;

  // What happens, in the order in which it does. Times that go back count as the latest.
  void at(TimeNs now_ns) { now_ns_ = std::max(now_ns_, now_ns); }
  void on(const MorphReady& ready);
  void on(const MorphDone& done);
  WishAnswered on(const WantForm& want);
  void step_started() { run_.step_started(); }
  void arrived(std::int64_t prompt_tokens);
  void computed(int tokens, TimeNs took_ns);
  void first_token(TimeNs ttft_ns) { monitor_.first_token(now_ns_, ttft_ns); }
  void next_token(TimeNs tpot_ns) { monitor_.token_time(now_ns_, tpot_ns); }
  std::shared_ptr<const std::string> drawn(std::uint32_t tag, PrecisionLedger::Counts& counts) {
    return ledger_.count(tag, counts);
  }

  // Before steps are planned: commits what is ready.
  void advance() { advance(false); }
  // After: what the load is now, and what form that calls for.
  void observe(const Observation& observation, const WaitEstimate& wait);
  // No step is in flight, so none waits for blocks that move.
  void advance_quietly() { advance(true); }

  // Keeps the form as it is once a morph that runs has ended. Requires that no wish comes.
  void hold(bool holds) { run_.hold(holds); }
  // Ends a wish. Without a policy, the KV cache gets all pages that are free.
  void free_form();
  bool busy() const { return run_.busy(); }
  const Form& committed() const { return run_.committed(); }

  std::optional<TimeNs> next_deadline_ns(bool idle) const;
  // Sequences that only a larger KV could hold, and none has come in time.
  std::vector<RequestId> given_up() const;

  std::vector<TokensAt> named(const PrecisionLedger::Counts& counts) const {
    return ledger_.named(counts);
  }
  // Null unless something has changed; tokens alone count once a second.
  std::shared_ptr<const FormStatus> status_if_changed();

 private:
  bool policy_rules() const { return config_.mode != MorphMode::kOff && !pinned_ && !run_.holds(); }
  void advance(bool quiet);
  bool at_rest() const;
  bool at_full_precision() const;
  void limit_prompts(const Observation& observation, const WaitEstimate& wait);
  void decide();
  std::optional<Wanted> all_blocks() const;
  void hold_back(TimeNs for_ns) { not_before_.change_ns = now_ns_ + for_ns; }
  Status check_precisions(const FormWish& wish) const;
  void give_back_lent();
  Result<Form> form_of(const FormWish& wish) const;
  Result<Morph> grant(const FormWish& wish);
  Result<Morph> go_to(const Form& form, const std::string& reason, bool pinned);
  void promise_kv();

  const MorphConfig config_;
  const std::int64_t largest_kv_blocks_;
  Scheduler& scheduler_;
  PrecisionLedger ledger_;
  MorphRun run_;
  Monitor monitor_;
  const MorphPolicy policy_;
  WaitEstimate full_speed_;  // of steps at the policy's first form
  LoadSample load_;
  TimeNs now_ns_ = 0;
  struct NotBefore {
    TimeNs next_ns = 0;     // decision: it looks at every sequence
    TimeNs change_ns = 0;   // after something went wrong
    TimeNs lending_ns = 0;  // when what was idle was wanted after all
  } not_before_;
  TimeNs larger_kv_since_ns_ = -1;  // since then somebody waits for one, -1: nobody
  int failed_in_a_row_ = 0;
  std::int64_t kv_before_wish_ = 0;  // of which its morph may lend some until it ends
  bool pinned_ = false;
  bool told_ = false;  // a status, at all
  bool told_pinned_ = false;
  std::uint64_t told_changes_ = 0;
  std::int64_t told_tokens_ = 0;
  TimeNs told_ns_ = 0;
};

}  // namespace protean
