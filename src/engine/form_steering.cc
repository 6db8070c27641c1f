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
constexpr TimeNs kTryAgainNs = 2 * kNsPerS;  // a swap that failed, or lending that was called off

template <class... Args>
Error refused(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kInvalidArgument,
               "this form cannot be had: " + fmt::format(format, std::forward<Args>(args)...)};
}

// Refuses for want of memory.
template <class... Args>
Error too_large(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kExhausted,
               "this form cannot be had: " + fmt::format(format, std::forward<Args>(args)...)};
}

MorphPolicy policy_of(const MorphConfig& config, const SchedulerConfig& limits) {
  return {config.policy,
          config.bounds,
          {.most_sequences = limits.max_num_seqs,
           .block_tokens = limits.block_tokens,
           .steps_in_flight = limits.steps_in_flight,
           .longest_morph_step_s = static_cast<double>(config.step_ns_during_morph) / kNsPerS}};
}

std::string names_of(const std::vector<Precision>& ladder) {
  std::string names;
  for (const Precision precision : ladder) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(precision));
  }
  return names;
}

}  // namespace

FormSteering::FormSteering(const MorphConfig& config, const SchedulerConfig& limits,
                           Executor& executor, Scheduler& scheduler, QueueTimes& times)
    : config_(config),
      largest_kv_blocks_(std::max(limits.kv_blocks, limits.largest_kv_blocks)),
      scheduler_(scheduler),
      times_(times),
      run_(config_, executor, scheduler, ledger_),
      policy_(policy_of(config, limits)),
      changed_ns_(std::numeric_limits<TimeNs>::min() / 2),
      pace_{.bytes_per_s = times.speed().copy_bytes_per_s()} {
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
  const MorphStep& failed = run_.history()->back()->step;
  if (const auto* swap = std::get_if<SwapComponent>(&failed)) {
    out_of_reach_.failed.push_back({*swap, now_ns_ + kTryAgainNs});
  } else {
    next_decision_ns_ = now_ns_ + kTryAgainNs;
  }
  pace_.bytes = 0;
  pinned_ = false;  // the operator's form cannot be reached
  give_back_lent();
}

// Returns lent pages to the KV cache after a failure, if no policy does.
void FormSteering::give_back_lent() {
  Form back = run_.committed();
  if (policy_rules() || run_.wanted() != back || back.kv.blocks >= kv_before_wish_) {
    return;
  }
  back.kv.blocks = kv_before_wish_;
  if (Result<Morph> morph = plan_morph(run_.committed(), back, config_.bounds); morph.ok()) {
    morph->reason = "the KV cache gets back what it lent";
    run_.retarget(*morph, false, now_ns_);
  }
}

void FormSteering::on(const MorphDone& done) {
  run_.on(done, now_ns_);
  changed_ns_ = now_ns_;
  learn_pace();
}

// Learns from a morph that has gone all the way how fast variants are read.
void FormSteering::learn_pace() {
  if (run_.busy()) {
    return;
  }
  if (pace_.bytes > 0 && now_ns_ > pace_.began_ns) {
    const double seen = pace_.bytes / (static_cast<double>(now_ns_ - pace_.began_ns) / kNsPerS);
    pace_.bytes_per_s = std::sqrt(pace_.bytes_per_s * seen);
  }
  pace_.bytes = 0;
}

void FormSteering::packed(std::shared_ptr<const Packing> packing) {
  out_of_reach_.packing = std::move(packing);
  out_of_reach_.packed_ns = now_ns_;
}

void FormSteering::step_done(TimeNs took_ns) {
  run_.step_took(took_ns);
}

void FormSteering::advance(bool quiet) {
  if (run_.shrinking() && !run_.insists()) {
    if (const std::int64_t lacking = scheduler_.demand().blocks_short; lacking > 0) {
      const bool only_lends = run_.wanted().kv.blocks >= run_.committed().kv.blocks;
      run_.call_off(fmt::format("{} more KV blocks are wanted again", lacking), now_ns_);
      (only_lends ? no_lending_before_ns_ : changed_ns_) =
          only_lends ? now_ns_ + kTryAgainNs : now_ns_;
      pace_.bytes = 0;
    }
  }
  const TimeNs committed_ns = run_.last_commit_ns();
  run_.advance(quiet, now_ns_);
  if (run_.last_commit_ns() != committed_ns) {
    times_.set_precision(step_precision(config_.bounds.spec, run_.committed()));
  }
  promise_kv();
}

void FormSteering::observe(const Observation& observation) {
  if (!scheduler_.has_too_large()) {
    larger_kv_since_ns_ = -1;
  } else if (larger_kv_since_ns_ < std::max(run_.last_commit_ns(), out_of_reach_.packed_ns) ||
             larger_kv_since_ns_ < 0) {
    larger_kv_since_ns_ = now_ns_;  // a morph that goes on may make room, or a variant packed now
  }
  if (now_ns_ >= next_decision_ns_) {  // not at each event: it looks at every sequence
    next_decision_ns_ = now_ns_ + config_.decide_every_ns;
    decide(observation);
    if (policy_rules()) {
      advance();
    }
  }
  // Weights change between steps: long steps would make a morph long, and everything waits for it.
  scheduler_.limit_prompts(
      run_.busy() ? times_.prompt_tokens_within(config_.step_ns_during_morph, scheduler_.backlog())
                  : std::numeric_limits<int>::max());
}

Situation FormSteering::situation(const Observation& observation, const Demand& demand) {
  std::erase_if(out_of_reach_.failed,
                [&](const FailedSwap& failed) { return failed.until_ns <= now_ns_; });
  Situation now{
      .committed = run_.committed(),
      .heading = run_.wanted(),
      .kept_s = run_.busy() ? 0 : static_cast<double>(now_ns_ - changed_ns_) / kNsPerS,
      .needed_blocks = static_cast<double>(observation.kv_blocks_used + demand.blocks_wanted),
      .copy_bytes_per_s = pace_.bytes_per_s,
      .failed = {},
      .missing = {}};
  for (const FailedSwap& failed : out_of_reach_.failed) {
    now.failed.push_back(failed.swap);
  }
  if (out_of_reach_.packing != nullptr) {
    now.missing = out_of_reach_.packing->missing;
  }
  return now;
}

void FormSteering::decide(const Observation& observation) {
  const Demand demand = scheduler_.demand();
  const Load load =
      watch_.load(now_ns_, scheduler_, times_.lengths(), config_.start.kv.block_tokens);
  watch_.expect_wait(observation.expected_wait_ns);
  if (!policy_rules()) {
    return;
  }
  if (config_.policy.rule == MorphRule::kPaper) {
    decide_by_paper(observation, demand);
    return;
  }
  Decision decision = policy_.decide(times_.speed(), load, situation(observation, demand));
  predictions_ = std::move(decision.predictions);
  if (!decision.wanted) {
    decision.wanted = idle_pages();
  }
  if (decision.wanted) {
    MorphAim aim{.faster_steps = !decision.wanted->for_room && demand.blocks_short <= 0};
    if (aim.faster_steps && now_ns_ >= no_lending_before_ns_) {
      aim.idle_blocks =
          std::max<std::int64_t>(0, observation.kv_blocks - observation.kv_blocks_used -
                                        demand.blocks_wanted - observation.running);
    }
    go_towards(*decision.wanted, aim);
  }
}

void FormSteering::decide_by_paper(const Observation& observation, const Demand& demand) {
  paper_.step_done(
      {.oldest_wait_ns = demand.waiting_since_ns < 0 ? 0 : now_ns_ - demand.waiting_since_ns,
       .kv_blocks = observation.kv_blocks,
       .kv_blocks_used = observation.kv_blocks_used,
       .kv_blocks_wanted = demand.blocks_wanted});
  if (const auto wanted = policy_.decide(paper_, situation(observation, demand))) {
    go_towards(*wanted, {});
  }
}

// Returns true if KV has to lend pages to a lowering because requests lack KV blocks. If all blocks
// are in use then, the last sequences in order are preempted. Waiting for answers to end would cost
// more: requests that lack blocks would wait with them for the larger KV. A reserve instead would
// cost its blocks at all times, and a part of a layer would not need a smaller one: the KV of each
// layer is on pages of its own, so KV gives up a page of every layer or none.
bool FormSteering::insists(const Morph& morph, const MorphAim& aim) const {
  const Form& form = run_.committed();
  const auto lowers = [&](const MorphStep& step) {
    const auto* swap = std::get_if<SwapComponent>(&step);
    return swap != nullptr && is_lower(swap->to, precision_of(form, swap->layer, swap->component));
  };
  return !aim.faster_steps && !morph.steps.empty() &&
         kv_blocks_of(morph.steps.front()).value_or(form.kv.blocks) < form.kv.blocks &&
         std::any_of(morph.steps.begin(), morph.steps.end(), lowers);
}

void FormSteering::go_towards(const Wanted& wanted, const MorphAim& aim) {
  Result<Morph> morph =
      plan_with_or_without_embeddings(run_.committed(), wanted.form, config_.bounds, aim);
  if (!morph.ok() || after(run_.committed(), *morph) == run_.wanted()) {
    return;
  }
  morph->reason = wanted.reason;
  const bool fresh = !run_.busy();
  const Form from = run_.committed();
  run_.retarget(*morph, insists(*morph, aim), now_ns_);
  pace_.bytes = fresh ? policy_.seconds(from, run_.wanted(), 1) : 0;
  pace_.began_ns = now_ns_;
}

// Returns the present form with all KV blocks that fit: a morph that was called off or failed may
// have ended with fewer.
std::optional<Wanted> FormSteering::idle_pages() const {
  if (run_.busy() || run_.committed() == policy_.path().front()) {
    return std::nullopt;
  }
  Result<Form> form = form_of({});
  return form.ok() && *form != run_.committed()
             ? std::optional(Wanted{*std::move(form), "pages lie idle", true})
             : std::nullopt;
}

WishAnswered FormSteering::on(const WantForm& want) {
  return {.wish_id = want.wish_id, .morph = grant(want.wish)};
}

void FormSteering::free_form() {
  if (config_.mode != MorphMode::kOff) {
    (void)grant({.release = true});
  } else if (const Result<Form> form = form_of({}); form.ok()) {
    (void)go_to(*form, "KV gets the pages that are free", false);
  }
}

FormWish FormSteering::chosen_policy() const {
  FormWish chosen;
  chosen.mode = config_.mode;
  chosen.floor = config_.bounds.floor;
  return chosen;
}

void FormSteering::go_on_with(const FormWish& policy) {
  if (policy.mode != config_.mode || policy.floor != config_.bounds.floor) {
    set_policy(policy);
  }
}

Result<Morph> FormSteering::grant(const FormWish& wish) {
  if (wish.names_form() + wish.release + wish.names_policy() > 1) {
    return refused(
        "a form, its release, and the policy's mode and quality floor are wishes of their own: ask "
        "for one after the other");
  }
  if (wish.names_policy()) {
    return set_policy(wish);
  }
  if (wish.release) {
    if (config_.mode == MorphMode::kOff) {
      return go_to(config_.start, "released by an operator: the form as it was loaded", false);
    }
    pinned_ = false;
    promise_kv();
    return Morph{.steps = {}, .reason = "handed back to the policy"};
  }
  Result<Form> form = form_of(wish);
  return form.ok() ? go_to(*form, "an operator's wish", true) : form.error();
}

// Changes how the policy decides from its next decision on. The form stays until then.
Morph FormSteering::set_policy(const FormWish& wish) {
  config_.mode = wish.mode.value_or(config_.mode);
  config_.policy.late_per_nat = options_for(config_.mode).late_per_nat;
  config_.bounds.floor = wish.floor.value_or(config_.bounds.floor);
  policy_ = policy_of(config_, scheduler_.config());
  predictions_.clear();
  next_decision_ns_ = now_ns_;
  promise_kv();
  return {.steps = {},
          .reason = fmt::format("the policy's mode is {}, its quality floor {}",
                                to_string(config_.mode), to_string(config_.bounds.floor))};
}

Result<Morph> FormSteering::go_to(const Form& form, const std::string& reason, bool pinned) {
  const std::int64_t needed = scheduler_.largest_need();
  if (form.kv.blocks < needed) {
    return too_large(
        "it has {} KV blocks, but a request that was accepted needs {}: ask for as many, or again "
        "when it has ended",
        form.kv.blocks, needed);
  }
  Result<Morph> morph = plan_morph(run_.committed(), form, config_.bounds);
  if (!morph.ok()) {
    return morph.error();
  }
  morph->reason = reason;
  pinned_ = pinned;
  kv_before_wish_ = run_.busy() ? kv_before_wish_ : run_.committed().kv.blocks;
  run_.retarget(*morph, true, now_ns_);
  promise_kv();
  return morph;
}

Status FormSteering::check_precisions(const FormWish& wish) const {
  const std::vector<Precision>& ladder = config_.bounds.ladder;
  const std::size_t layers = config_.start.layer_precision.size();
  if (!wish.layers.empty() && wish.layers.size() != layers) {
    return refused("it names {} layers, the model has {}", wish.layers.size(), layers);
  }
  for (std::size_t layer = 0; layer < wish.layers.size(); ++layer) {
    for (const Component half : kLayerHalves) {
      const Precision precision = wish.layers[layer].of(half);
      const Precision start = config_.start.layer_precision[layer].of(half);
      const std::vector<Precision> served =
          layer_precisions({.layer_precision = {{start, start}}}, ladder);
      if (std::find(served.begin(), served.end(), precision) == served.end()) {
        return refused("layer {} {} at {}, but served are {}", layer, to_string(half),
                       to_string(precision), names_of(served));
      }
    }
  }
  const std::vector<Precision> embeddings = embeddings_precisions(config_.start.embeddings, ladder);
  if (wish.embeddings &&
      std::find(embeddings.begin(), embeddings.end(), *wish.embeddings) == embeddings.end()) {
    return refused("embeddings at {}, but served are {}", to_string(*wish.embeddings),
                   names_of(embeddings));
  }
  return {};
}

Result<Form> FormSteering::form_of(const FormWish& wish) const {
  if (Status served = check_precisions(wish); !served.ok()) {
    return served.error();
  }
  const ModelSpec& spec = config_.bounds.spec;
  const PageBudget& budget = config_.bounds.budget;
  Form form = run_.committed();
  if (!wish.layers.empty()) {
    form.layer_precision = wish.layers;
  }
  form.embeddings = wish.embeddings.value_or(form.embeddings);
  const std::int64_t fitting = std::min(kv_blocks_beside(config_.bounds, form), largest_kv_blocks_);
  form.kv.blocks = wish.kv_blocks.value_or(fitting);
  if (wish.kv_blocks && *wish.kv_blocks <= 0) {
    return refused("{} KV blocks; it may have 1 to {}", *wish.kv_blocks, largest_kv_blocks_);
  }
  if (wish.kv_blocks && *wish.kv_blocks > largest_kv_blocks_) {
    return too_large("{} KV blocks; with the fewest bits all over it may have 1 to {}",
                     *wish.kv_blocks, largest_kv_blocks_);
  }
  const std::int64_t missing =
      form_pages(spec, form, budget.page_bytes) + budget.reserve - budget.pages;
  if (missing > 0 || form.kv.blocks <= 0) {
    return too_large(
        "'{}' lacks {}: beside these weights {} KV blocks fit; lower more layers or ask for fewer "
        "blocks",
        to_string(form), format_bytes(std::max<std::int64_t>(missing, 1) * budget.page_bytes),
        fitting);
  }
  return form;
}

// Sets what KV requests may need, so that none waits forever: the policy's forms grow when they are
// needed, as far as the path leads; a form that only an operator changes might not.
void FormSteering::promise_kv() {
  if (run_.holds()) {
    return;  // the form will change again
  }
  std::int64_t now = run_.committed().kv.blocks;
  if (run_.busy()) {  // some may be lent
    now = std::max(now, kv_before_wish_);
  }
  const std::int64_t released = config_.mode == MorphMode::kOff
                                    ? config_.start.kv.blocks
                                    : std::min(largest_kv_blocks_, policy_.path().back().kv.blocks);
  scheduler_.set_largest_kv(policy_rules() ? released : std::min(now, run_.wanted().kv.blocks),
                            released);
}

bool FormSteering::at_rest() const {
  return !run_.busy() && run_.committed() == policy_.path().front();
}

std::optional<TimeNs> FormSteering::next_deadline_ns(bool idle) const {
  std::optional<TimeNs> next_ns;
  if (policy_rules() && !(idle && at_rest())) {
    next_ns = std::max(next_decision_ns_, now_ns_ + 1);
  }
  if (larger_kv_since_ns_ >= 0) {
    const TimeNs give_up_ns =
        std::max(larger_kv_since_ns_ + config_.larger_kv_within_ns, now_ns_ + 1);
    next_ns = std::min(next_ns.value_or(give_up_ns), give_up_ns);
  }
  if (told_.any && ledger_.tokens() != told_.tokens) {  // the last tokens before a quiet time
    const TimeNs tell_ns = std::max(told_.at_ns + kTokensEveryNs, now_ns_ + 1);
    next_ns = std::min(next_ns.value_or(tell_ns), tell_ns);
  }
  return next_ns;
}

std::vector<RequestId> FormSteering::given_up() const {
  const bool in_vain =
      larger_kv_since_ns_ >= 0 && now_ns_ - larger_kv_since_ns_ >= config_.larger_kv_within_ns;
  return in_vain ? scheduler_.too_large() : std::vector<RequestId>{};
}

void FormSteering::go_on_from(const FormCounts& counts) {
  run_.go_on_from(counts.morphs);
  ledger_.go_on_from(counts.output_tokens);
}

std::shared_ptr<const FormStatus> FormSteering::status_if_changed() {
  const bool more_tokens =
      ledger_.tokens() != told_.tokens && now_ns_ - told_.at_ns >= kTokensEveryNs;
  if (told_.any && run_.changes() == told_.changes && pinned_ == told_.pinned &&
      config_.mode == told_.mode && config_.bounds.floor == told_.floor &&
      out_of_reach_.packing == told_.packing && !more_tokens) {
    return nullptr;
  }
  told_ = {.any = true,
           .pinned = pinned_,
           .mode = config_.mode,
           .floor = config_.bounds.floor,
           .packing = out_of_reach_.packing,
           .changes = run_.changes(),
           .tokens = ledger_.tokens(),
           .at_ns = now_ns_};
  auto status = std::make_shared<FormStatus>();
  const MorphRun::Totals& totals = run_.totals();
  status->form = run_.reached();
  status->wanted = run_.wanted();
  status->mode = config_.mode;
  status->floor = config_.bounds.floor;
  status->ladder = config_.bounds.ladder;
  status->precisions = layer_precisions(config_.start, config_.bounds.ladder);
  status->embeddings_precisions =
      embeddings_precisions(config_.start.embeddings, config_.bounds.ladder);
  status->pinned = pinned_;
  status->pages = {.page_bytes = config_.bounds.budget.page_bytes,
                   .all = config_.bounds.budget.pages,
                   .free = run_.pages_free()};
  status->packing = out_of_reach_.packing;
  status->swaps_down_total = totals.swaps_down;
  status->swaps_up_total = totals.swaps_up;
  status->kv_resizes_total = totals.kv_resizes;
  status->blocks_moved_total = totals.blocks_moved;
  status->failures_total = totals.failures;
  status->remarks_total = totals.remarks;
  status->output_tokens = ledger_.totals();
  status->load = watch_.seen(now_ns_);
  status->predictions = predictions_;
  status->history = run_.history();
  return status;
}

}  // namespace protean
