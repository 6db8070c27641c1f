#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/units.h"
#include "contract/request.h"
#include "cost/step_time.h"
#include "engine/form_steering.h"
#include "engine/morph_config.h"
#include "engine/precision_ledger.h"
#include "engine/wait_estimate.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "ports/token_sink.h"
#include "scheduler/scheduler.h"

namespace protean {

struct EngineConfig {
  SchedulerConfig scheduler;
  int max_in_flight = 1;  // steps started and not done; each pipeline stage needs one
  // The time within which a request without a deadline is due. Requests that are due earlier come
  // before it, so that no request waits forever behind others of its priority.
  TimeNs default_first_token_ns = 10 * kNsPerS;
  std::optional<MorphConfig> morph;  // without it, the form never changes
  StepCost step_cost;                // of this model on this machine; all 0: not known
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

  bool idle() const { return live_.empty() && started_ns_.empty(); }
  Observation observe() const { return scheduler_.observe(); }

 private:
  // An accepted request that has not ended.
  struct Live {
    std::vector<TokenId> stop_ids;
    int tokens_left = 0;
    int prompt_tokens = 0;
    Pooling pooling = Pooling::kNone;
    Deadlines deadlines;
    TimeNs timer_ns = -1;  // its entry in timers_
    RequestTimes times;
    TimeNs last_token_ns = -1;
    PrecisionLedger::Counts drawn_at;
    std::vector<double> pooled;  // the sum so far
  };

  static std::vector<float> embedding_of(const Live& live);

  void on(Arrival& arrival);
  void on(Cancel& cancel);
  void on(StepDone& done);
  void pool(Pooled& pooled);
  void take(Sampled& sampled);
  void on(MorphReady& ready);
  void on(MorphDone& done);
  void on(WantForm& want);
  // Returns the label of the precision that drew the token.
  std::shared_ptr<const std::string> count(const Sampled& sampled, Live& live);
  void on(Tick&) {}
  TimeNs latest_start_ns(const Deadlines& deadlines, std::int64_t tokens) const;
  void set_timer(RequestId request, Live& live);
  void expire();
  void start_steps();
  void finish(RequestId request, Finished finished);

  const int max_in_flight_;
  const TimeNs default_first_token_ns_;
  Scheduler scheduler_;
  Executor& executor_;
  TokenSink& sink_;
  std::unordered_map<RequestId, Live> live_;
  std::set<std::pair<TimeNs, RequestId>> timers_;
  std::unique_ptr<FormSteering> steering_;  // null: the form never changes
  WaitEstimate wait_;
  std::deque<TimeNs> started_ns_;  // of the steps in flight
  TimeNs last_done_ns_ = 0;
  TimeNs now_ns_ = 0;  // of the event being handled
  OutputBatch batch_;  // the outputs of that event so far
  int step_tokens_ = 0;
};

}  // namespace protean
