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
  int max_in_flight = 1;  // steps started and not yet done; pipeline stages need one each
  // What a request that sets no deadline is queued by. Those due earlier come before it, however
  // many arrive, but only so long: nobody of its priority waits forever.
  TimeNs default_first_token_ns = 10 * kNsPerS;
  std::optional<MorphConfig> morph;  // nothing: the form stays
};

// The state machine of one replica: an event in, steps and outputs out. Decides when an answer ends
// (stop token, max_tokens, deadline, cancel, failure); when what runs is the scheduler's matter. A
// request whose first token is predicted to miss its deadline is refused (kExhausted) when it
// comes, and ended by kTimeout as soon as it could not make it even if it began at once. Has no
// thread, clock or queue of its own, so server and simulator drive the same code. Single-threaded;
// executor and sink outlive it.
class Engine {
 public:
  Engine(const EngineConfig& config, Executor& executor, TokenSink& sink);

  // Every Arrival is answered at once by Accepted or Refused, and every Accepted later by exactly
  // one Finished (invariant 7). Cancels of unknown or ended requests are ignored: they cross with
  // the end on the way.
  void handle(Event event);

  // When there is something to do even if nothing happens, as for a policy that looks at the load:
  // a Tick should be sent then.
  std::optional<TimeNs> next_deadline_ns() const;

  bool idle() const { return live_.empty() && started_ns_.empty(); }
  Observation observe() const { return scheduler_.observe(); }

 private:
  // What is needed to know when an accepted request ends.
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
    std::vector<double> pooled;  // so far
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
  void count(const Sampled& sampled, Live& live);
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
  std::unique_ptr<FormSteering> steering_;  // null: the form stays
  WaitEstimate wait_;
  std::deque<TimeNs> started_ns_;  // of the steps in flight
  TimeNs last_done_ns_ = 0;
  TimeNs now_ns_ = 0;  // of the event being handled
  OutputBatch batch_;  // what that event led to so far
  int step_tokens_ = 0;
};

}  // namespace protean
