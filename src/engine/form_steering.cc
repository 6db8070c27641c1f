#include "engine/form_steering.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "control/plan_morph.h"
#include "cost/pages.h"

namespace protean {
namespace {

constexpr TimeNs kTokensEveryNs = kNsPerS;
constexpr TimeNs kCalledOffNs = kNsPerS;  // before the policy tries again
constexpr TimeNs kFailedNs = kNsPerS;     // doubled for each failure in a row
constexpr int kMostDoublings = 6;
constexpr int kLeastPromptTokens = 16;  // fewer are multiplied hardly sooner

template <class... Args>
Error refused(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kInvalidArgument,
               "this form cannot be had: " + fmt::format(format, std::forward<Args>(args)...)};
}

// For want of memory.
template <class... Args>
Error too_large(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kExhausted,
               "this form cannot be had: " + fmt::format(format, std::forward<Args>(args)...)};
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
                           Executor& executor, Scheduler& scheduler)
    : config_(config),
      largest_kv_blocks_(std::max(limits.kv_blocks, limits.largest_kv_blocks)),
      scheduler_(scheduler),
      run_(config_, executor, scheduler, ledger_),
      monitor_(config.policy),
      policy_(config.policy, config.bounds),
      full_speed_(limits.max_num_batched_tokens) {
  check(config.start.kv.blocks == limits.kv_blocks &&
            config.start.kv.block_tokens == limits.block_tokens,
        "the form that is loaded has the scheduler's blocks");
  promise_kv();
}

void FormSteering::on(const MorphReady& ready) {
  const std::int64_t failures = run_.totals().failures;
  run_.on(ready, now_ns_);
  if (run_.totals().failures > failures) {
    hold_back(kFailedNs << std::min(failed_in_a_row_++, kMostDoublings));
    pinned_ = false;  // what the operator wanted is not to be had
    give_back_lent();
  }
}

// After a failure, where no policy does.
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
  failed_in_a_row_ = 0;
}

void FormSteering::arrived(std::int64_t prompt_tokens) {
  ++load_.arrivals_total;
  load_.arrived_tokens_total += prompt_tokens;
}

void FormSteering::computed(int tokens, TimeNs took_ns) {
  run_.step_took(took_ns);
  if (at_full_precision()) {
    full_speed_.step_done(tokens, took_ns);
  }
  load_.full_work_ns_total += tokens * full_speed_.token_ns();
}

void FormSteering::advance(bool quiet) {
  if (run_.shrinking() && !run_.insists()) {
    if (const std::int64_t lacking = scheduler_.demand().blocks_short; lacking > 0) {
      const bool only_lends = run_.wanted().kv.blocks >= run_.committed().kv.blocks;
      run_.call_off(fmt::format("{} more KV blocks are wanted again", lacking), now_ns_);
      (only_lends ? not_before_.lending_ns : not_before_.change_ns) = now_ns_ + kCalledOffNs;
    }
  }
  run_.advance(quiet, now_ns_);
  promise_kv();
}

void FormSteering::observe(const Observation& observation, const WaitEstimate& wait) {
  const Demand demand = scheduler_.demand();
  const bool due = now_ns_ >= not_before_.next_ns;
  load_.at_ns = now_ns_;
  if (due) {  // not at each event: it looks at every sequence
    not_before_.next_ns = now_ns_ + config_.decide_every_ns;
    const Backlog backlog = scheduler_.backlog();
    const bool queue = backlog.prompts > 1 || backlog.without_place > 0;
    load_.expected_wait_ns = queue ? wait.first_token_ns(backlog, 0) : 0;
  }
  load_.running = observation.running;
  load_.waiting = observation.waiting;
  load_.oldest_wait_ns =
      demand.waiting_since_ns < 0 ? 0 : std::max(TimeNs{0}, now_ns_ - demand.waiting_since_ns);
  load_.kv_blocks = observation.kv_blocks;
  load_.kv_blocks_used = observation.kv_blocks_used;
  load_.blocks_wanted = demand.blocks_wanted;
  load_.step_full = demand.step_full;
  load_.preemptions_total = observation.preemptions_total;
  monitor_.sample(load_);
  if (!scheduler_.has_too_large()) {
    larger_kv_since_ns_ = -1;
  } else if (larger_kv_since_ns_ < run_.last_commit_ns() || larger_kv_since_ns_ < 0) {
    larger_kv_since_ns_ = now_ns_;  // as long as the form gets on, there is hope
  }
  if (due && policy_rules()) {
    decide();
    advance();
  }
  limit_prompts(observation, wait);
}

// Parts change between steps: long ones would make a morph long, and all wait for it.
void FormSteering::limit_prompts(const Observation& observation, const WaitEstimate& wait) {
  int most = std::numeric_limits<int>::max();
  if (run_.busy()) {
    const int running = static_cast<int>(observation.running);
    most = std::max(kLeastPromptTokens,
                    wait.prompt_tokens_within(config_.step_ns_during_morph, running));
  }
  scheduler_.limit_prompts(most);
}

void FormSteering::decide() {
  if (now_ns_ < not_before_.change_ns) {
    return;
  }
  std::optional<Wanted> wanted = policy_.decide(monitor_.signals(now_ns_), run_.wanted());
  if (!wanted && !run_.busy() && run_.committed() != policy_.path().front()) {
    wanted = all_blocks();
  }
  if (!wanted || wanted->form == run_.wanted() ||
      (wanted->form.kv.blocks < run_.committed().kv.blocks &&
       wanted->form.kv.blocks < scheduler_.largest_need())) {
    return;
  }
  MorphAim& aim = wanted->aim;
  const std::int64_t promised = scheduler_.largest_need();
  aim.idle_blocks = now_ns_ < not_before_.lending_ns
                        ? 0
                        : std::min(aim.idle_blocks, run_.committed().kv.blocks - promised);
  Result<Morph> morph =
      plan_with_or_without_embeddings(run_.committed(), wanted->form, config_.bounds, aim);
  if (!morph.ok()) {
    hold_back(kFailedNs << std::min(failed_in_a_row_++, kMostDoublings));
  } else if (after(run_.committed(), *morph) != run_.wanted()) {
    morph->reason = wanted->reason;
    run_.retarget(*morph, false, now_ns_);
  }
}

// A morph that was called off or failed may have ended with fewer blocks than there is room for.
std::optional<Wanted> FormSteering::all_blocks() const {
  Result<Form> form = form_of({});
  return form.ok() ? std::optional(Wanted{*std::move(form), "pages lie idle"}) : std::nullopt;
}

WishAnswered FormSteering::on(const WantForm& want) {
  return {.wish_id = want.wish_id, .morph = grant(want.wish)};
}

void FormSteering::free_form() {
  (void)grant({.release = config_.mode != MorphMode::kOff});
}

Result<Morph> FormSteering::grant(const FormWish& wish) {
  if (wish.release) {
    if (!wish.layers.empty() || wish.embeddings || wish.kv_blocks) {
      return refused(
          "to release it is a wish of its own: ask for layers, embeddings or KV blocks without it");
    }
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

Result<Morph> FormSteering::go_to(const Form& form, const std::string& reason, bool pinned) {
  const std::int64_t needed = scheduler_.largest_need();
  if (form.kv.blocks < needed) {
    return too_large(
        "it has {} KV blocks, but a request that was accepted needs {}: ask for as many, or again "
        "when it has ended",
        form.kv.blocks, needed);
  }
  Result<Morph> morph =
      plan_morph(run_.committed(), form, config_.bounds, {.lends_to_embeddings = true});
  if (!morph.ok()) {
    return morph.error();
  }
  for (const MorphStep& step : morph->steps) {
    const auto blocks = kv_blocks_of(step);
    if (blocks && *blocks < needed) {
      return too_large(
          "until the embeddings are swapped it has {} KV blocks, but a request that was accepted "
          "needs "
          "{}: ask again when it has ended",
          *blocks, needed);
    }
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

// Nobody may be accepted who could then wait forever: what grows by the policy will grow when it is
// needed, as far as the policy may go; what only an operator changes might not.
void FormSteering::promise_kv() {
  if (run_.holds()) {
    return;  // the form will change again
  }
  std::int64_t now = run_.committed().kv.blocks;
  if (run_.busy()) {  // perhaps some are lent
    now = std::max(now, kv_before_wish_);
  }
  const std::int64_t released = config_.mode == MorphMode::kOff
                                    ? config_.start.kv.blocks
                                    : std::min(largest_kv_blocks_, policy_.path().back().kv.blocks);
  scheduler_.set_largest_kv(policy_rules() ? released : std::min(now, run_.wanted().kv.blocks),
                            released);
}

bool FormSteering::at_full_precision() const {
  return equally_precise(run_.reached(), policy_.path().front());
}

bool FormSteering::at_rest() const {
  return !run_.busy() && run_.committed() == policy_.path().front();
}

std::optional<TimeNs> FormSteering::next_deadline_ns(bool idle) const {
  std::optional<TimeNs> next_ns;
  if (policy_rules() && !(idle && at_rest())) {
    next_ns = std::max(not_before_.next_ns, now_ns_ + 1);
  }
  if (larger_kv_since_ns_ >= 0) {
    const TimeNs give_up_ns =
        std::max(larger_kv_since_ns_ + config_.larger_kv_within_ns, now_ns_ + 1);
    next_ns = std::min(next_ns.value_or(give_up_ns), give_up_ns);
  }
  if (told_ && ledger_.tokens() != told_tokens_) {  // the last tokens before a quiet time
    const TimeNs tell_ns = std::max(told_ns_ + kTokensEveryNs, now_ns_ + 1);
    next_ns = std::min(next_ns.value_or(tell_ns), tell_ns);
  }
  return next_ns;
}

std::vector<RequestId> FormSteering::given_up() const {
  const bool in_vain =
      larger_kv_since_ns_ >= 0 && now_ns_ - larger_kv_since_ns_ >= config_.larger_kv_within_ns;
  return in_vain ? scheduler_.too_large() : std::vector<RequestId>{};
}

std::shared_ptr<const FormStatus> FormSteering::status_if_changed() {
  const bool more_tokens = ledger_.tokens() != told_tokens_ && now_ns_ - told_ns_ >= kTokensEveryNs;
  if (told_ && run_.changes() == told_changes_ && pinned_ == told_pinned_ && !more_tokens) {
    return nullptr;
  }
  told_ = true;
  told_changes_ = run_.changes();
  told_pinned_ = pinned_;
  told_tokens_ = ledger_.tokens();
  told_ns_ = now_ns_;
  auto status = std::make_shared<FormStatus>();
  const MorphRun::Totals& totals = run_.totals();
  status->form = run_.reached();
  status->wanted = run_.wanted();
  status->mode = config_.mode;
  status->ladder = config_.bounds.ladder;
  status->precisions = layer_precisions(config_.start, config_.bounds.ladder);
  status->embeddings_precisions =
      embeddings_precisions(config_.start.embeddings, config_.bounds.ladder);
  status->pinned = pinned_;
  status->page_bytes = config_.bounds.budget.page_bytes;
  status->pages = config_.bounds.budget.pages;
  status->pages_free = run_.pages_free();
  status->swaps_down_total = totals.swaps_down;
  status->swaps_up_total = totals.swaps_up;
  status->kv_resizes_total = totals.kv_resizes;
  status->blocks_moved_total = totals.blocks_moved;
  status->failures_total = totals.failures;
  status->remarks_total = totals.remarks;
  status->output_tokens = ledger_.totals();
  const Signals signals = monitor_.signals(now_ns_);
  status->load = {.pressed_share = signals.pressed_share,
                  .queued_share = signals.queued_share,
                  .expected_wait_ns = signals.now.expected_wait_ns,
                  .ttft_p95_ns = monitor_.ttft_p95_ns(now_ns_),
                  .tpot_p95_ns = monitor_.tpot_p95_ns(now_ns_)};
  status->history = run_.history();
  return status;
}

}  // namespace protean
