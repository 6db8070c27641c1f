#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "base/ids.h"
#include "base/units.h"
#include "contract/form.h"
#include "contract/morph.h"
#include "engine/morph_config.h"
#include "engine/precision_ledger.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "scheduler/scheduler.h"

namespace protean {

// Takes a replica through a morph. Has steps prepared ahead as far as pages allow, commits them in
// order, and gives the scheduler new blocks and takes old ones from it, after live content has
// moved. A morph that fails or is superseded ends at the form committed so far, which is legal
// (invariant 3). Decides nothing. Single-threaded; executor, scheduler and ledger must outlive it.
class MorphRun {
 public:
  // Counts for operators.
  struct Totals {
    std::int64_t swaps_down = 0;
    std::int64_t swaps_up = 0;
    std::int64_t kv_resizes = 0;
    std::int64_t blocks_moved = 0;
    std::int64_t failures = 0;
    std::int64_t remarks = 0;
  };

  MorphRun(const MorphConfig& config, Executor& executor, Scheduler& scheduler,
           PrecisionLedger& ledger);

  // Replaces the steps that are not committed by those of `morph`, which begins at committed().
  // Steps that both begin with continue. With `insists`, sequences are preempted if blocks cannot
  // leave otherwise.
  void retarget(const Morph& morph, bool insists, TimeNs now_ns);
  // Drops the steps that are not committed.
  void call_off(const std::string& why, TimeNs now_ns);
  // While it holds, no policy or operator begins a morph. One that runs goes on.
  void hold(bool holds) { holds_ = holds; }
  bool holds() const { return holds_; }

  void on(const MorphReady& ready, TimeNs now_ns);
  void on(const MorphDone& done, TimeNs now_ns);
  void step_started() { moves_left_ = moves_per_step_; }
  void step_took(TimeNs took_ns);

  // Does all that can be done before the next step is planned. `quiet`: no step is in flight.
  void advance(bool quiet, TimeNs now_ns);

  // Sets the number of pages of the device, which the budget has from then on. Returns false if the
  // device has too few free ones. Requires that no morph is under way if the number is smaller.
  [[nodiscard]] bool set_quota(std::int64_t pages);

  bool busy() const { return !steps_.empty() || !committed_steps_.empty(); }
  bool committing() const { return !committed_steps_.empty(); }  // the executor does it now
  bool shrinking() const { return scheduler_.shrinking(); }
  bool insists() const { return insists_; }
  const Form& reached() const { return reached_; }      // reported by the executor
  const Form& committed() const { return committed_; }  // for steps planned from now on
  Form wanted() const;
  std::string reason() const { return steps_.empty() ? "" : steps_.front().record.reason; }
  std::int64_t pages_free() const { return pages_free_; }
  const Totals& totals() const { return totals_; }
  void go_on_from(const Totals& totals) { totals_ = totals; }
  const std::shared_ptr<const MorphHistory>& history() const { return history_; }
  TimeNs last_commit_ns() const { return last_commit_ns_; }
  std::uint64_t changes() const { return changes_; }  // grows if any of the above changes

 private:
  enum class Stage { kWaiting, kVacating, kPreparing, kReady };
  struct Step {
    MorphRecord record;
    Stage stage = Stage::kWaiting;
    std::int64_t pages_taken = 0;  // when it is prepared
    std::int64_t pages_given = 0;  // when it is done
  };

  bool is_shrink(const Form& before, const MorphStep& step) const;
  std::int64_t pages_of(const Step& step, const Form& before) const;
  bool can_prepare(const Step& step, const Form& before, bool resize_before) const;
  void prepare(Step& step, const Form& before, TimeNs now_ns);
  void prepare_ahead(TimeNs now_ns);
  void begin_shrink(Step& step, TimeNs now_ns);
  void vacate(Step& step, bool quiet, TimeNs now_ns);
  bool commit_front(TimeNs now_ns);
  void drop_from(std::size_t first, const std::string& why, TimeNs now_ns);
  void remember(MorphRecord record);

  const MorphConfig& config_;
  Executor& executor_;
  Scheduler& scheduler_;
  PrecisionLedger& ledger_;
  std::deque<Step> steps_;            // not committed yet
  std::deque<Step> committed_steps_;  // not done yet
  bool insists_ = false;
  bool holds_ = false;
  Form reached_;
  Form committed_;
  std::int64_t pages_free_ = 0;       // reported by the executor
  std::int64_t pages_available_ = 0;  // pages for the steps prepared next
  std::int64_t moves_per_step_;
  std::int64_t moves_left_;
  std::uint64_t last_id_ = 0;
  TimeNs last_commit_ns_ = -1;
  std::uint64_t changes_ = 0;
  Totals totals_;
  std::shared_ptr<const MorphHistory> history_ = std::make_shared<const MorphHistory>();
};

}  // namespace protean
