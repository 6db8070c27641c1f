#include "engine/form_steering.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "control/plan_morph.h"
#include "cost/pages.h"

namespace protean {
namespace {

constexpr TimeNs kTokensEveryNs = kNsPerS;

MorphPolicy policy_of(const MorphConfig& config, const SchedulerConfig& limits) {
  return {config.policy,
          config.bounds,
          {.most_sequences = limits.max_num_seqs,
           .block_tokens = limits.block_tokens,
           .steps_in_flight = limits.steps_in_flight}};
}

}  // namespace

FormSteering::FormSteering(const MorphConfig& config, const SchedulerConfig& limits,
                           Executor& executor, Scheduler& scheduler, QueueTimes& times)
    : config_(config),
      memory_{.largest_kv_blocks = std::max(limits.kv_blocks, limits.largest_kv_blocks),
              .wanted = {.pages = config.bounds.budget.pages},
              .kv = {},
              .told = {.latest = {.wish = config.wishes_before}}},
      scheduler_(scheduler),
      times_(times),
      run_(config_, executor, scheduler, ledger_),
      policy_(policy_of(config, limits)),
      changed_ns_(std::numeric_limits<TimeNs>::min() / 2),
      pace_{.bytes_per_s = times.speed().copy_bytes_per_s()} {
  config_.rest = config.start;
  if (config.opened.layer_precision.empty()) {
    config_.opened = config.start;
  }
  check(config.start.kv.blocks == limits.kv_blocks &&
            config.start.kv.block_tokens == limits.block_tokens,
        "the form that is loaded has the scheduler's blocks");
  times_.set_precision(step_precision(config.bounds.spec, config.start));
  promise_kv();
}

void FormSteering::on(const MorphReady& ready) {
  const std::int64_t failures = run_.totals().failures;
  run_.on(ready, now_ns_);
  if (run_.totals().failures == failures) {
    return;
  }
  pace_.bytes = 0;
  const MorphStep& failed = run_.history()->back()->step;
  const auto* swap = std::get_if<SwapComponent>(&failed);
  const bool for_quota = swap == nullptr && (memory_.kv.shrinks || memory_.kv.grows);
  if (!run_.holds() && !for_quota) {
    end_pin();  // the operator's form cannot be reached
  }
  if (swap != nullptr) {
    failed_.push_back({*swap, now_ns_ + kFailedPauseNs});
    take_free_pages();
  } else {
    next_decision_ns_ = now_ns_ + kFailedPauseNs;
    memory_.kv.waits = true;
  }
}

// Returns the form with all KV blocks that fit into so many pages with its weights.
Form FormSteering::with_kv_in(Form form, std::int64_t pages) const {
  const FormBounds& bounds = config_.bounds;
  const std::int64_t most =
      bounds.most_kv_blocks > 0 ? bounds.most_kv_blocks : std::numeric_limits<std::int64_t>::max();
  const std::int64_t fitting = kv_blocks_that_fit(bounds.spec, form, pages - bounds.budget.reserve,
                                                  bounds.budget.page_bytes);
  form.kv.blocks = std::min({fitting, most, memory_.largest_kv_blocks});
  return form;
}

bool FormSteering::frees_pages(const Form& to) const {
  return with_free_pages(to).kv.blocks > with_free_pages(run_.committed()).kv.blocks;
}

// Returns true if a form is worth pages of sequences that run. The embeddings alone are not: they
// are one piece, whose variant may take most of KV.
bool FormSteering::may_preempt(const Form& to) const {
  return frees_pages(to) && to.layer_precision != run_.committed().layer_precision;
}

// Lets KV take the pages that other models returned or a morph which ended early left free, if no
// policy decides about them, no operator has named KV blocks, and other models are not to get them.
// What is still under way goes on. A form that is held takes them after the hold.
void FormSteering::take_free_pages() {
  const std::int64_t quota = config_.bounds.budget.pages;
  if (policy_rules() || memory_.wanted.pages < quota || memory_.wanted.pages_after_morph > 0) {
    return;
  }
  if (run_.holds()) {
    memory_.kv.waits = true;
    return;
  }
  if (!pin_) {
    go_towards({with_free_pages(run_.wanted()), "KV gets the pages that are free", true});
    return;
  }
  const Form form = with_kv_in(run_.wanted(), std::min(quota, own_pages()));
  if (memory_.kv.pin_grows && form.kv.blocks > run_.wanted().kv.blocks) {
    memory_.kv.grows = go_to(form, "an operator's wish, with memory that came back").ok();
  }
}

void FormSteering::on(const MorphDone& done) {
  run_.on(done, now_ns_);
  changed_ns_ = now_ns_;
  if (run_.busy()) {
    return;
  }
  if (pace_.bytes > 0 && now_ns_ > pace_.began_ns) {  // it has gone all the way
    const double seen = pace_.bytes / (static_cast<double>(now_ns_ - pace_.began_ns) / kNsPerS);
    pace_.bytes_per_s = std::sqrt(pace_.bytes_per_s * seen);
  }
  pace_.bytes = 0;
}

void FormSteering::packed(std::shared_ptr<const Packing> packing) {
  packing_ = std::move(packing);
  larger_kv_since_ns_ = -1;  // the variant may make room for it
  ++changes_;
}

void FormSteering::advance(bool quiet) {
  const std::int64_t lacking =
      run_.shrinking() && !run_.insists() ? scheduler_.demand().blocks_short : 0;
  if (lacking > 0) {
    const Wanted wanted{run_.wanted(), run_.reason(), true};
    run_.call_off(fmt::format("{} more KV blocks are wanted again", lacking), now_ns_);
    pace_.bytes = 0;
    if (std::exchange(memory_.kv.shrinks, false)) {
      memory_.wanted.pages = config_.bounds.budget.pages;  // no page is to spare
    }
    if (may_preempt(wanted.form)) {
      go_towards(wanted);  // KV was to lend more than the first swap needs
    } else {
      changed_ns_ = now_ns_;
      if (wanted.form.layer_precision == run_.committed().layer_precision &&
          wanted.form.embeddings != run_.committed().embeddings) {
        // Without a pause, a need that varies around the remaining blocks would begin the morph at
        // each decision.
        failed_.push_back(
            {{0, Component::kEmbeddings, wanted.form.embeddings}, now_ns_ + kFailedPauseNs});
      }
      take_free_pages();
    }
  }
  const TimeNs committed_ns = run_.last_commit_ns();
  run_.advance(quiet, now_ns_);
  if (run_.last_commit_ns() != committed_ns) {
    times_.set_precision(step_precision(config_.bounds.spec, run_.committed()));
    larger_kv_since_ns_ = -1;  // a morph that goes on may make room
  }
  promise_kv();
}

void FormSteering::observe(const Observation& observation) {
  if (!scheduler_.has_too_large() || own_memory_suffices()) {
    larger_kv_since_ns_ = -1;
  } else if (larger_kv_since_ns_ < 0) {
    larger_kv_since_ns_ = now_ns_;
  }
  follow_quota();
  const bool decides = now_ns_ >= next_decision_ns_;
  if (std::exchange(passes_.one_ended, false) || (decides && passes_.in_flight == 0)) {
    watch_pressure();
  }
  if (decides) {  // not at each event: it looks at every sequence
    next_decision_ns_ = now_ns_ + config_.decide_every_ns;
    decide(observation.expected_wait_ns);
    const bool again = !run_.holds() && std::exchange(memory_.kv.waits, false);
    if (again) {
      take_free_pages();
    }
    if (again || policy_rules()) {
      advance();
    }
  }
}

Load FormSteering::load(TimeNs now_ns) const {
  return watch_.load(now_ns, scheduler_, times_.lengths(), config_.start.kv.block_tokens);
}

// Returns the load of the latest decision, as the rule foresees it.
Load FormSteering::foreseen() const {
  return config_.policy.rule == MorphRule::kPredict ? decided_.load
                                                    : without_arrivals(decided_.load);
}

std::int64_t FormSteering::needed_blocks() const {
  return scheduler_.observe().kv_blocks_used + scheduler_.demand().blocks_wanted;
}

Situation FormSteering::situation() const {
  Situation now{.committed = run_.committed(),
                .heading = run_.wanted(),
                .kept_s = run_.busy() ? 0 : static_cast<double>(now_ns_ - changed_ns_) / kNsPerS,
                .needed_blocks = needed_blocks(),
                .copy_bytes_per_s = pace_.bytes_per_s,
                .failed = {},
                .missing = {}};
  for (const FailedSwap& failed : failed_) {
    now.failed.push_back(failed.swap);
  }
  if (packing_ != nullptr) {
    now.missing = packing_->missing;
  }
  return now;
}

FormView FormSteering::view(TimeNs now_ns) const {
  return {.load = load(now_ns),
          .way = policy_.way(times_.speed(), situation()),
          .copy_bytes_per_s = pace_.bytes_per_s};
}

std::vector<Way> FormSteering::ways_down() const {
  return policy_rules() ? policy_.ways_down(times_.speed(), situation()) : std::vector<Way>();
}

void FormSteering::allow_lowering() {
  if (const auto wanted = std::exchange(decided_.lowering, std::nullopt);
      wanted && policy_rules()) {
    go_towards(*wanted);
  }
}

void FormSteering::decide(TimeNs expected_wait_ns) {
  decided_.lowering.reset();
  std::erase_if(failed_, [&](const FailedSwap& failed) { return failed.until_ns <= now_ns_; });
  decided_.load = load(now_ns_);
  decided_.expected_wait_ns = expected_wait_ns;
  if (!policy_rules() || memory_.wanted.pages != config_.bounds.budget.pages ||
      memory_.wanted.pages_after_morph > 0) {
    return;
  }
  if (config_.policy.rule == MorphRule::kPaper) {
    const bool looked = std::exchange(passes_.undecided, false);
    const auto wanted = looked ? policy_.decide(passes_.rule, situation()) : std::nullopt;
    if (wanted && !(wanted->lowers && awaits_memory())) {
      go_towards(*wanted);
    }
    return;
  }
  Decision decision = policy_.decide(times_.speed(), foreseen(), situation());
  decided_.rests = decision.predictions.empty();
  if (!decided_.rests) {
    decided_.predictions = std::move(decision.predictions);
  }
  if (decision.wanted && decision.wanted->lowers && awaits_memory()) {
    return;
  }
  if (decision.wanted && decision.wanted->lowers && config_.weighed) {
    decided_.lowering = std::move(decision.wanted);
  } else if (decision.wanted) {
    go_towards(*decision.wanted);
  } else if (!run_.busy()) {
    go_towards({with_free_pages(run_.committed()), "pages lie idle", true});
  }
}

// Lets the paper's rule look at the forward pass that ended, or at a time without any.
void FormSteering::watch_pressure() {
  if (config_.policy.rule != MorphRule::kPaper) {
    return;
  }
  passes_.undecided = true;
  const Observation observation = scheduler_.observe();
  const Demand demand = scheduler_.demand();
  passes_.rule.step_done(
      {.oldest_wait_ns = demand.waiting_since_ns < 0 ? 0 : now_ns_ - demand.waiting_since_ns,
       .kv_blocks = observation.kv_blocks,
       .kv_blocks_used = observation.kv_blocks_used,
       .kv_blocks_wanted = demand.blocks_wanted});
}

// Returns the KV blocks that may be lent to the first swaps: idle ones, unless blocks are what is
// short.
std::int64_t FormSteering::idle_blocks_for(const Wanted& wanted) const {
  const Observation observation = scheduler_.observe();
  const std::int64_t next_decodes = observation.running;
  const bool short_of_blocks = wanted.for_room || scheduler_.demand().blocks_short > 0;
  return short_of_blocks
             ? 0
             : std::max<std::int64_t>(0, observation.kv_blocks - needed_blocks() - next_decodes);
}

// Begins the morph to a form. If a lowering needs blocks that are in use, the last sequences in
// order are preempted. Waiting for answers to end would cost more: requests that lack blocks would
// wait with them for the larger KV. A reserve instead would cost its blocks at all times, and a
// part of a layer would not need a smaller one: the KV of each layer is on pages of its own, so KV
// gives up a page of every layer or none.
void FormSteering::go_towards(const Wanted& wanted) {
  const Form& from = run_.committed();
  const std::int64_t idle = idle_blocks_for(wanted);
  Result<Morph> morph = plan_with_or_without_embeddings(from, wanted.form, config_.bounds, idle);
  if (!morph.ok() || after(from, *morph) == run_.wanted()) {
    return;
  }
  morph->reason = wanted.reason;
  pace_.bytes = run_.busy() ? 0 : policy_.seconds(from, after(from, *morph), 1);
  pace_.began_ns = now_ns_;
  const bool idle_only = idle > 0 && least_kv_blocks(from, *morph) >= needed_blocks();
  run_.retarget(*morph, may_preempt(wanted.form) && !idle_only, now_ns_);
}

SteeringState FormSteering::state() const {
  SteeringState state{.counts = FormCounts{run_.totals(), ledger_.totals()},
                      .policy = {},
                      .pin = pin_,
                      .packing = packing_};
  state.policy.mode = config_.mode;
  state.policy.floor = config_.bounds.floor;
  return state;
}

void FormSteering::absorb(SteeringState state) {
  if (state.counts) {
    run_.go_on_from(state.counts->morphs);
    ledger_.go_on_from(state.counts->output_tokens);
  }
  if (state.policy.mode != config_.mode || state.policy.floor != config_.bounds.floor) {
    set_policy(state.policy);
  }
  pin_ = std::move(state.pin);
  packed(std::move(state.packing));
  told_ = {};
}

// Changes how the policy decides from its next decision on. The form stays until then.
void FormSteering::set_policy(const FormWish& wish) {
  config_.mode = wish.mode.value_or(config_.mode);
  config_.policy.late_per_nat = options_for(config_.mode).late_per_nat;
  config_.bounds.floor = wish.floor.value_or(config_.bounds.floor);
  renew_policy();
}

// Decides anew, by what the policy and its bounds are now.
void FormSteering::renew_policy() {
  policy_ = policy_of(config_, scheduler_.config());
  decided_.predictions.clear();
  decided_.lowering.reset();
  next_decision_ns_ = now_ns_;
  ++changes_;
  take_free_pages();
  promise_kv();
}

Result<Morph> FormSteering::grant_policy(const FormWish& wish) {
  MorphConfig asked = config_;
  asked.mode = wish.mode.value_or(asked.mode);
  asked.bounds.floor = wish.floor.value_or(asked.bounds.floor);
  const auto largest_of = [&](const MorphPolicy& policy, MorphMode mode) {
    return largest_kv(policy, pin_ ? MorphMode::kOff : mode);
  };
  const std::int64_t largest = largest_of(policy_of(asked, scheduler_.config()), asked.mode);
  const std::int64_t needed = scheduler_.largest_need();
  if (largest < std::min(needed, largest_of(policy_, config_.mode))) {
    return make_error(ErrorCode::kExhausted,
                      "mode {} with quality floor {} cannot be set: KV would have at most {} "
                      "blocks, but a request that was accepted needs {}: ask again when it has "
                      "ended",
                      to_string(asked.mode), to_string(asked.bounds.floor), largest, needed);
  }
  set_policy(wish);
  return Morph{.steps = {},
               .reason = fmt::format("the policy's mode is {}, its quality floor {}",
                                     to_string(asked.mode), to_string(asked.bounds.floor))};
}

// Returns the KV blocks that a request may need. The policy's forms grow when they are needed, as
// far as the path leads; a form that only an operator changes might not. While KV lends some, those
// count that it has with the present weights, because it gets them back if the morph fails. The
// model's own pages count, not its quota.
std::int64_t FormSteering::largest_kv(const MorphPolicy& policy, MorphMode mode) const {
  const bool trades = own_pages() != config_.bounds.budget.pages;
  if (mode != MorphMode::kOff) {
    const Form& last = policy.path().back();
    return trades ? with_kv_in(last, own_pages()).kv.blocks
                  : std::min(memory_.largest_kv_blocks, last.kv.blocks);
  }
  const Form& now = run_.committed();
  if (kv_comes_back()) {
    return std::min(with_kv_in(now, own_pages()).kv.blocks,
                    with_kv_in(run_.wanted(), own_pages()).kv.blocks);
  }
  const std::int64_t kept = run_.busy() ? with_free_pages(now).kv.blocks : now.kv.blocks;
  return std::min(
      {kept, run_.wanted().kv.blocks, trades ? with_kv_in(now, own_pages()).kv.blocks : kept});
}

void FormSteering::promise_kv() {
  if (run_.holds()) {
    return;  // the form will change again
  }
  const std::int64_t released = config_.mode != MorphMode::kOff ? largest_kv(policy_, config_.mode)
                                : config_.own_pages > 0
                                    ? with_kv_in(config_.rest, config_.own_pages).kv.blocks
                                    : config_.rest.kv.blocks;
  scheduler_.set_largest_kv(policy_rules() ? released : largest_kv(policy_, MorphMode::kOff),
                            released);
}

bool FormSteering::at_rest() const {
  return !run_.busy() && run_.committed() == policy_.path().front();
}

std::optional<TimeNs> FormSteering::next_deadline_ns(bool idle) const {
  std::optional<TimeNs> next_ns;
  const bool rests_in_less =
      config_.own_pages == 0 && !run_.busy() && memory_.wanted.pages != config_.bounds.budget.pages;
  const bool kv_waits = (memory_.kv.waits || rests_in_less) && !run_.holds();
  if (kv_waits || (policy_rules() && !(idle && at_rest()))) {
    next_ns = std::max(next_decision_ns_, now_ns_ + 1);
  }
  if (const auto give_up_ns = gives_up_ns()) {
    const TimeNs then_ns = std::max(*give_up_ns, now_ns_ + 1);
    next_ns = std::min(next_ns.value_or(then_ns), then_ns);
  }
  if (memory_is_open()) {
    const TimeNs tell_ns = std::max(memory_.told.at_ns + kTellMemoryEveryNs, now_ns_ + 1);
    next_ns = std::min(next_ns.value_or(tell_ns), tell_ns);
  }
  if (ledger_.tokens() != told_.tokens) {  // the last tokens before a quiet time
    const TimeNs tell_ns = std::max(told_.at_ns + kTokensEveryNs, now_ns_ + 1);
    next_ns = std::min(next_ns.value_or(tell_ns), tell_ns);
  }
  return next_ns;
}

// Returns when requests fail that wait for a larger KV; nothing if none waits, or while a morph
// leads to a form that holds them.
std::optional<TimeNs> FormSteering::gives_up_ns() const {
  const bool waits = larger_kv_since_ns_ >= 0 &&
                     !(run_.busy() && run_.wanted().kv.blocks >= scheduler_.largest_need());
  return waits ? std::optional(larger_kv_since_ns_ + static_cast<TimeNs>(kHorizonS * kNsPerS))
               : std::nullopt;
}

std::vector<RequestId> FormSteering::given_up() const {
  const auto give_up_ns = gives_up_ns();
  return give_up_ns && now_ns_ >= *give_up_ns ? scheduler_.too_large() : std::vector<RequestId>{};
}

std::shared_ptr<const FormStatus> FormSteering::status_if_changed() {
  const std::uint64_t changes = run_.changes() + changes_;
  const bool more_tokens =
      ledger_.tokens() != told_.tokens && now_ns_ - told_.at_ns >= kTokensEveryNs;
  if (told_.changes == changes && !more_tokens) {
    return nullptr;
  }
  told_ = {.changes = changes, .tokens = ledger_.tokens(), .at_ns = now_ns_};
  if (decided_.rests && policy_rules()) {  // people want to read why the form stays
    decided_.predictions = policy_.explain(times_.speed(), foreseen(), situation()).predictions;
  }
  auto status = std::make_shared<FormStatus>();
  const MorphRun::Totals& totals = run_.totals();
  status->form = run_.reached();
  status->wanted = run_.wanted();
  status->mode = config_.mode;
  status->floor = config_.bounds.floor;
  status->ladder = config_.bounds.ladder;
  status->precisions = layer_precisions(config_.opened, config_.bounds.ladder);
  status->embeddings_precisions =
      embeddings_precisions(config_.opened.embeddings, config_.bounds.ladder);
  status->pinned = pin_.has_value();
  status->pages = {.page_bytes = config_.bounds.budget.page_bytes,
                   .all = config_.bounds.budget.pages,
                   .own = own_pages(),
                   .free = run_.pages_free()};
  status->packing = packing_;
  status->swaps_down_total = totals.swaps_down;
  status->swaps_up_total = totals.swaps_up;
  status->kv_resizes_total = totals.kv_resizes;
  status->blocks_moved_total = totals.blocks_moved;
  status->failures_total = totals.failures;
  status->remarks_total = totals.remarks;
  status->output_tokens = ledger_.totals();
  status->load = watch_.seen(now_ns_, decided_.load, decided_.expected_wait_ns);
  status->predictions = decided_.predictions;
  status->history = run_.history();
  return status;
}

}  // namespace protean
