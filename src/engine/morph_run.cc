#include "engine/morph_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/overloaded.h"
#include "control/plan_morph.h"
#include "cost/memory.h"
#include "cost/pages.h"

namespace protean {
namespace {

constexpr std::ptrdiff_t kHistory = 256;
constexpr double kMoveBytesPerNs = 4;  // a low estimate for any machine

}  // namespace

MorphRun::MorphRun(const MorphConfig& config, Executor& executor, Scheduler& scheduler,
                   PrecisionLedger& ledger)
    : config_(config),
      executor_(executor),
      scheduler_(scheduler),
      ledger_(ledger),
      reached_(config.start),
      committed_(config.start),
      moves_per_step_(config.moves_per_step),
      moves_left_(config.moves_per_step),
      last_id_(config.ids_after) {
  const PageBudget& budget = config.bounds.budget;
  pages_free_ = budget.pages - form_pages(config.bounds.spec, config.start, budget.page_bytes);
  pages_available_ = pages_free_;
  // Gives tag 0 to full precision, which all replicas and groups of a fleet share.
  ledger_.tag_of(config.bounds.full);
  scheduler_.set_precision_tag(ledger_.tag_of(committed_));
}

void MorphRun::step_took(TimeNs took_ns) {
  const auto block_bytes =
      static_cast<double>(kv_block_bytes(config_.bounds.spec, config_.bounds.full.kv));
  const double moves =
      config_.moves_share * static_cast<double>(took_ns) * kMoveBytesPerNs / block_bytes;
  moves_per_step_ = std::max<std::int64_t>(config_.moves_per_step, std::llround(moves));
}

Form MorphRun::wanted() const {
  Form form = committed_;
  for (const Step& step : steps_) {
    form = after(std::move(form), step.record.step);
  }
  return form;
}

void MorphRun::retarget(const Morph& morph, bool insists, TimeNs now_ns) {
  std::size_t kept = 0;
  while (kept < steps_.size() && kept < morph.steps.size() &&
         steps_[kept].record.step == morph.steps[kept]) {
    ++kept;
  }
  drop_from(kept, "superseded: " + morph.reason, now_ns);
  for (; kept < morph.steps.size(); ++kept) {
    Step& step = steps_.emplace_back();
    step.record.id = ++last_id_;
    step.record.step = morph.steps[kept];
    step.record.reason = morph.reason;
  }
  insists_ = insists;
  ++changes_;
}

void MorphRun::call_off(const std::string& why, TimeNs now_ns) {
  drop_from(0, "called off: " + why, now_ns);
}

// Drops the last step first, so that each is aborted at the form it was prepared for.
void MorphRun::drop_from(std::size_t first, const std::string& why, TimeNs now_ns) {
  while (steps_.size() > first) {
    Step& step = steps_.back();
    if (step.stage == Stage::kPreparing || step.stage == Stage::kReady) {
      executor_.abort(MorphId{step.record.id});
      pages_available_ += step.pages_taken;
    }
    // The scheduler does not know of a larger KV before its commit, so only a shrink is cancelled.
    if (steps_.size() == 1 && scheduler_.shrinking()) {
      scheduler_.cancel_shrink();
    }
    if (step.stage != Stage::kWaiting) {
      step.record.done_ns = now_ns;
      step.record.failure = why;
      remember(std::move(step.record));
    }
    steps_.pop_back();
    ++changes_;
  }
}

void MorphRun::on(const MorphReady& ready, TimeNs now_ns) {
  const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) {
    return step.record.id == ready.id.value && step.stage == Stage::kPreparing;
  });
  if (found == steps_.end()) {
    return;  // the step was dropped while the event was on its way
  }
  if (!ready.failure) {
    found->record.ready_ns = now_ns;
    found->record.remark = ready.remark;
    totals_.remarks += ready.remark.empty() ? 0 : 1;
    found->stage = Stage::kReady;
    return;
  }
  ++totals_.failures;
  drop_from(static_cast<std::size_t>(found - steps_.begin()) + 1,
            fmt::format("step {} before it failed", ready.id.value), now_ns);
  Step& failed = steps_.back();
  if (steps_.size() == 1 && scheduler_.shrinking()) {
    scheduler_.cancel_shrink();
  }
  pages_available_ += failed.pages_taken;
  failed.record.done_ns = now_ns;
  failed.record.failure = ready.failure->message;
  remember(std::move(failed.record));
  steps_.pop_back();
  ++changes_;
}

void MorphRun::on(const MorphDone& done, TimeNs now_ns) {
  const auto found =
      std::find_if(committed_steps_.begin(), committed_steps_.end(),
                   [&](const Step& step) { return step.record.id == done.id.value; });
  check(found != committed_steps_.end(), "each commit is done once");
  Step step = std::move(*found);
  committed_steps_.erase(found);
  std::visit(
      Overloaded{
          [this](const SwapComponent& swap) {
            const Precision before = precision_of(reached_, swap.layer, swap.component);
            ++(is_lower(swap.to, before) ? totals_.swaps_down : totals_.swaps_up);
          },
          [this](const ResizeKv&) { ++totals_.kv_resizes; },
          [](const HoldShards&) { check(false, "what devices hold is changed by the fleet"); }},
      step.record.step);
  reached_ = after(std::move(reached_), step.record.step);
  pages_available_ += step.pages_given;
  pages_free_ = done.pages_free;
  step.record.done_ns = now_ns;
  remember(std::move(step.record));
}

void MorphRun::advance(bool quiet, TimeNs now_ns) {
  do {
    prepare_ahead(now_ns);
    if (!steps_.empty() && steps_.front().stage == Stage::kVacating) {
      vacate(steps_.front(), quiet, now_ns);
    }
  } while (commit_front(now_ns));
}

bool MorphRun::set_quota(std::int64_t pages) {
  const std::int64_t more = pages - config_.bounds.budget.pages;
  check(more >= 0 || !busy(), "steps under way keep their pages");
  if (!executor_.set_quota(pages)) {
    return false;
  }
  pages_free_ += more;
  pages_available_ += more;
  ++changes_;
  return true;
}

bool MorphRun::is_shrink(const Form& before, const MorphStep& step) const {
  return kv_blocks_of(step).value_or(before.kv.blocks) < before.kv.blocks;
}

// Prepares steps in order, as far as pages allow. A step's pages come in addition to those of all
// steps that are not done. A shrink of KV is prepared when it is first, and later steps need not
// wait for it. A growth waits until the steps before it have returned their pages; meanwhile, swaps
// use the pages that it will leave free.
void MorphRun::prepare_ahead(TimeNs now_ns) {
  const PageBudget& budget = config_.bounds.budget;
  Form before = committed_;
  int under_way = 0;
  bool resize_before = false;
  std::optional<std::int64_t> left_by_growth;  // pages that a waiting growth leaves free
  const auto count = [&](const Step& step) {
    ++under_way;
    left_by_growth = left_by_growth ? *left_by_growth - step.pages_taken : left_by_growth;
  };
  for (std::size_t i = 0; i < steps_.size() && under_way < config_.max_in_flight_swaps; ++i) {
    Step& step = steps_[i];
    if (step.stage != Stage::kWaiting) {
      count(step);
    } else if (is_shrink(before, step.record.step)) {
      if (i == 0) {
        begin_shrink(step, now_ns);
        ++under_way;
      }
    } else if (can_prepare(step, before, resize_before) &&
               (!left_by_growth || pages_of(step, before) <= *left_by_growth)) {
      prepare(step, before, now_ns);
      count(step);
    } else if (kv_blocks_of(step.record.step) && !resize_before) {
      left_by_growth =
          budget.pages -
          form_pages(config_.bounds.spec, after(before, step.record.step), budget.page_bytes);
    } else {
      return;  // no later step may take its pages
    }
    resize_before = resize_before || kv_blocks_of(step.record.step);
    before = after(std::move(before), step.record.step);
  }
}

bool MorphRun::can_prepare(const Step& step, const Form& before, bool resize_before) const {
  if (kv_blocks_of(step.record.step) && resize_before) {
    return false;
  }
  // The first step is always tried, so that the executor reports missing pages rather than the
  // morph waiting forever.
  const bool alone = &step == &steps_.front() && committed_steps_.empty();
  return alone || pages_of(step, before) <= pages_available_;
}

std::int64_t MorphRun::pages_of(const Step& step, const Form& before) const {
  const FormBounds& bounds = config_.bounds;
  return pages_to_prepare(bounds.spec, before, step.record.step, bounds.budget.page_bytes);
}

void MorphRun::prepare(Step& step, const Form& before, TimeNs now_ns) {
  const FormBounds& bounds = config_.bounds;
  const Form next = after(before, step.record.step);
  step.pages_taken = pages_of(step, before);
  step.pages_given = step.pages_taken + form_pages(bounds.spec, before, bounds.budget.page_bytes) -
                     form_pages(bounds.spec, next, bounds.budget.page_bytes);
  pages_available_ -= step.pages_taken;
  step.record.asked_ns = step.record.asked_ns < 0 ? now_ns : step.record.asked_ns;
  step.stage = Stage::kPreparing;
  executor_.prepare(MorphId{step.record.id}, step.record.step);
}

void MorphRun::begin_shrink(Step& step, TimeNs now_ns) {
  step.record.asked_ns = now_ns;
  step.stage = Stage::kVacating;
  scheduler_.begin_shrink(*kv_blocks_of(step.record.step));
}

void MorphRun::vacate(Step& step, bool quiet, TimeNs now_ns) {
  while (!scheduler_.shrink_ready()) {
    const std::int64_t limit =
        quiet ? std::numeric_limits<std::int64_t>::max() : std::int64_t{moves_left_};
    if (limit <= 0) {
      return;
    }
    std::vector<BlockMove> moves = scheduler_.next_moves(limit);
    if (!moves.empty()) {
      moves_left_ -= std::ssize(moves);
      totals_.blocks_moved += std::ssize(moves);
      executor_.move_blocks(std::move(moves));
    } else if (!insists_ || !scheduler_.preempt_for_shrink()) {
      return;
    }
  }
  prepare(step, committed_, now_ns);
}

bool MorphRun::commit_front(TimeNs now_ns) {
  if (steps_.empty() || steps_.front().stage != Stage::kReady) {
    return false;
  }
  Step& step = steps_.front();
  const MorphId id{step.record.id};
  if (const auto blocks = kv_blocks_of(step.record.step)) {
    if (*blocks > committed_.kv.blocks) {
      scheduler_.grow_kv(*blocks);
    } else {
      scheduler_.finish_shrink();
    }
  }
  committed_ = after(std::move(committed_), step.record.step);
  executor_.commit(id);
  scheduler_.set_precision_tag(ledger_.tag_of(committed_));
  committed_steps_.push_back(std::move(step));
  steps_.pop_front();
  last_commit_ns_ = now_ns;
  return true;
}

void MorphRun::remember(MorphRecord record) {
  const auto dropped = std::max<std::ptrdiff_t>(std::ssize(*history_) + 1 - kHistory, 0);
  MorphHistory history;
  history.reserve(static_cast<std::size_t>(kHistory));
  history.assign(history_->begin() + dropped, history_->end());
  history.push_back(std::make_shared<const MorphRecord>(std::move(record)));
  history_ = std::make_shared<const MorphHistory>(std::move(history));
  ++changes_;
}

}  // namespace protean
