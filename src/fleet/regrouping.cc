#include "fleet/regrouping.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "control/plan_regroup.h"
#include "cost/group_cost.h"
#include "cost/hold_pages.h"

namespace protean {
namespace {

constexpr int kMostDoublings = 6;  // of a wait

bool moves_kv(const MorphStep& step) {
  return std::get<HoldShards>(step).component == Component::kAttention;
}

// Returns true if devices give up shards for the step, and none copies anything.
bool only_drops(const ModelSpec& spec, const Form& form, const MorphStep& step) {
  const auto fetched = weight_bytes_fetched(spec, form, std::get<HoldShards>(step));
  return !moves_kv(step) &&
         std::all_of(fetched.begin(), fetched.end(), [](std::int64_t bytes) { return bytes == 0; });
}

}  // namespace

std::int64_t most_kv_blocks(const GroupConfig& config, const Form& wide) {
  const PageBudget& budget = config.budget;
  const std::int64_t reserve =
      budget.reserve + (config.wide_reserve ? config.wide_reserve(wide) : 0);
  return std::max(wide.kv.blocks,
                  kv_blocks_that_fit(config.spec, wide, budget.pages - reserve, budget.page_bytes));
}

bool weighs(const GroupConfig& config) {
  return config.scale == ScalePolicy::kJoint || config.drop == DropPolicy::kJoint;
}

StepSpeed speed_as(const EngineConfig& group, const StepSpeed& home) {
  return group.step_cost.is_known() ? home.at_cost(group.step_cost, group.path_cost) : home;
}

Regrouping::Regrouping(const GroupConfig& config, std::vector<Station>& stations, TokenSink& sink,
                       Group group, std::vector<Form> forms)
    : config_(config),
      stations_(stations),
      sink_(sink),
      group_(std::move(group)),
      together_(true),
      stage_(Stage::kSettling),
      lead_{.from = std::move(forms), .to = {}} {}

Regrouping::Regrouping(const GroupConfig& config, std::vector<Station>& stations, TokenSink& sink,
                       Group group)
    : config_(config),
      stations_(stations),
      sink_(sink),
      group_(std::move(group)),
      together_(false),
      stage_(Stage::kShrinking),
      form_(group_.wide),
      joined_(group_.joined()) {}

void Regrouping::begin(std::string reason, std::uint64_t& generation, TimeNs now_ns) {
  generation_ = &generation;
  record_ = {.replicas = group_.homes,
             .by = group_.by,
             .together = together_,
             .reason = std::move(reason),
             .asked_ns = now_ns,
             .failure = {}};
  if (stage_ == Stage::kSettling) {
    for (std::size_t home = 0; home < count(); ++home) {
      engine(home).hold_form(true);
    }
  }
}

bool Regrouping::concerns(ReplicaId replica) const {
  return std::find(group_.homes.begin(), group_.homes.end(), replica) != group_.homes.end();
}

std::string Regrouping::stage() const {
  switch (stage_) {
    case Stage::kSettling: {
      const bool smaller =
          group_.shrunk_from > 0 && std::ranges::all_of(lead_.from, [&](const Form& form) {
            return equally_precise(form, group_.home);
          });
      return smaller ? "waits for smaller KV caches" : "waits for the replicas' forms";
    }
    case Stage::kJoining:
    case Stage::kUnifying:
    case Stage::kDividing:
    case Stage::kParting:
      return "waits for the end of steps";
    case Stage::kMoving:
      return "joint steps";
    case Stage::kShrinking:
      return "waits for room in the replicas";
    case Stage::kEnded:
      return "done";
  }
  return "?";
}

void Regrouping::turn(bool together, const std::string& why) {
  if (together == together_ || stage_ == Stage::kEnded) {
    return;
  }
  // A group that has waited to part goes on as it was.
  const bool stays = waits_to_part();
  together_ = together;
  record_.together = together;
  (stays ? record_.reason : record_.failure) = why;
  news_.failure = together ? news_.failure : why;
  wait_.until_ns = 0;
  wait_.attempts = 0;
  if (stage_ == Stage::kMoving) {
    plan();
  }
}

void Regrouping::break_up(const std::string& why) {
  const bool fetches = stage_ == Stage::kMoving && !together_;
  turn(false, why);
  if (fetches) {  // what is under way may come from the devices that have failed now
    wait_.until_ns = 0;
    plan();
  }
  news_.failure.reset();  // no attempt to form a group has failed
  record_.failure = why;
  haste_ = Haste::kBroken;
  if (joint_) {
    join_executors();  // steps in flight are forgotten
  }
  if (joined()) {
    for (std::size_t home = 0; home < (joint_ ? count() : 1); ++home) {
      engine(home).hold_steps();
    }
  }
}

void Regrouping::advance(TimeNs now_ns) {
  now_ns_ = now_ns;
  for (bool more = true; more;) {
    const Stage before = stage_;
    switch (stage_) {
      case Stage::kSettling:
        settle();
        break;
      case Stage::kJoining:
        join();
        break;
      case Stage::kMoving:
        move();
        break;
      case Stage::kUnifying:
        unify();
        break;
      case Stage::kShrinking:
        shrink();
        break;
      case Stage::kDividing:
        divide();
        break;
      case Stage::kParting:
        part();
        break;
      case Stage::kEnded:
        break;
    }
    more = stage_ != before;
  }
  if (joint_) {
    joint_->dispatch(now_ns_);
  }
}

void Regrouping::hold_all() {
  for (std::size_t home = 0; home < count(); ++home) {
    engine(home).hold_steps();
  }
}

bool Regrouping::all_quiet() const {
  return (!joint_ || joint_->quiet()) &&
         std::all_of(group_.homes.begin(), group_.homes.end(), [this](ReplicaId home) {
           return stations_[static_cast<std::size_t>(home.value)].engine->quiet();
         });
}

// Waits until the forms of all homes are at rest and no KV migrates.
void Regrouping::settle() {
  count_preempted();
  if (!together_) {
    end();
    return;
  }
  for (std::size_t home = 0; home < count(); ++home) {
    if (!engine(home).form_at_rest() || engine(home).exchanges_kv()) {
      wait_.reason = fmt::format("replica {} is still changing its form or moving requests",
                                 group_.homes[home].value);
      return;
    }
  }
  wait_.reason.clear();
  if (const std::optional<Error> why = agree()) {
    together_ = record_.together = false;
    record_.failure = why->message;
    news_.failure = why->message;
    end();
    return;
  }
  if (group_.wide.group.empty()) {
    return;  // until the homes have the forms to which they are led
  }
  hold_all();
  stage_ = Stage::kJoining;
}

void Regrouping::join() {
  if (!together_) {
    end();
    return;
  }
  if (!all_quiet()) {
    return;
  }
  config_.devices->join(group_.homes);
  begin_joint_steps();
  give_up_kv();
  let_homes_go_on();
}

void Regrouping::join_executors() {
  const int at_once = group_.by == GroupBy::kLayers ? static_cast<int>(count()) : 1;
  joint_ = std::make_unique<JointSteps>(*config_.devices, first(), count(), at_once);
  for (std::size_t home = 0; home < count(); ++home) {
    at(group_.homes[home]).executor->join(*joint_, home);
  }
}

// Lets the homes start joint steps, unless their devices lack what failed ones held.
void Regrouping::let_homes_go_on() {
  for (std::size_t home = 0; home < count() && !broken(); ++home) {
    engine(home).go_on(now_ns_);
  }
}

void Regrouping::begin_joint_steps() {
  join_executors();
  for (std::size_t home = 0; home < count(); ++home) {
    // The prompts of a joint step share the activation memory that one replica's have.
    const SchedulerConfig& limits = engine(home).limits();
    engine(home).limit_steps(limits.max_num_batched_tokens / static_cast<int>(count()) +
                             limits.max_num_seqs);
  }
  record_.begun_ns = now_ns_;
  stage_ = Stage::kMoving;
  plan();
}

// Gives up steps that are not committed and plans those to the target.
void Regrouping::plan() {
  for (auto step = preparing_.rbegin(); step != preparing_.rend(); ++step) {
    at(first()).executor->own().abort(step->id);
  }
  preparing_.clear();
  steps_.clear();
  wait_.for_kv = false;  // what moves now was not weighed
  const Result<Morph> morph = plan_regroup(config_.spec, form_, target(), config_.budget);
  check(morph.ok(), "a way that was gone is open in both directions");
  steps_.assign(morph->steps.begin(), morph->steps.end());
}

void Regrouping::move() {
  if (!preparing_.empty() && std::all_of(preparing_.begin(), preparing_.end(),
                                         [](const Step& step) { return step.ready; })) {
    commit();
  }
  compute_again();
  if (!preparing_.empty() || !committed_.empty() || now_ns_ < wait_.until_ns) {
    return;
  }
  if (!steps_.empty()) {
    prepare();
    return;
  }
  record_.settled_ns = now_ns_;
  hold_all();
  stage_ = together_ ? Stage::kUnifying : Stage::kParting;
}

void Regrouping::prepare() {
  const int most = config_.steps_at_once;
  int layers_left = most == kAllAtOnce ? most : joint_->layers_at_once(most);
  int copies_left = most;
  bool dropping = false;  // which waits for no copy
  std::vector<MorphStep> next;
  for (const MorphStep& step : steps_) {
    const bool drops = only_drops(config_.spec, form_, step);
    layers_left -= moves_kv(step) ? 1 : 0;
    copies_left -= drops ? 0 : 1;
    if (copies_left < 0 || layers_left < 0 || (dropping && !drops)) {
      break;
    }
    dropping = drops;
    next.push_back(step);
  }
  const std::size_t count = preparable(config_.spec, form_, next, config_.budget);
  for (std::size_t i = 0; i < count; ++i) {
    const MorphId id{kFirstId + ++*generation_};
    preparing_.push_back({id, std::move(steps_.front())});
    steps_.pop_front();
    at(first()).executor->own().prepare(id, preparing_.back().step);
  }
}

// Commits the prepared steps before the next joint step. KV goes with attention, so the devices are
// told first which blocks hold any.
void Regrouping::commit() {
  Executor& executor = at(first()).executor->own();
  int layers = 0;
  for (Step& step : preparing_) {
    std::vector<std::vector<BlockId>> live;
    if (moves_kv(step.step)) {
      ++layers;
      for (std::size_t home = 0; home < count(); ++home) {
        live.push_back(engine(home).live_blocks());
      }
    }
    count_bytes(std::get<HoldShards>(step.step), live);
    if (!live.empty()) {
      config_.devices->keep(first(), std::move(live));
    }
    executor.commit(step.id);
    form_ = after(std::move(form_), step.step);
    committed_.push_back(step.id);
    ++record_.steps;
  }
  preparing_.clear();
  wait_.attempts = 0;
  joint_->changing(layers, now_ns_);
}

void Regrouping::on(const MorphReady& ready, TimeNs now_ns) {
  now_ns_ = now_ns;
  const auto found = std::find_if(preparing_.begin(), preparing_.end(),
                                  [&](const Step& step) { return step.id == ready.id; });
  if (found == preparing_.end()) {
    return;  // the step was given up while the event was on its way
  }
  if (!ready.failure) {
    found->ready = true;
    return;
  }
  const std::string why =
      fmt::format("{} failed: {}", to_string(found->step), ready.failure->message);
  preparing_.erase(found);
  news_.failure = why;
  if (record_.failure.empty()) {
    turn(!together_, why);
  } else {
    plan();
    try_later(why, kNsPerS);
  }
}

bool Regrouping::on(const MorphDone& done, TimeNs now_ns) {
  if (std::erase(committed_, done.id) == 0) {
    return false;
  }
  now_ns_ = now_ns;
  if (committed_.empty()) {
    joint_->changed(now_ns);
  }
  return true;
}

void Regrouping::step_done(ReplicaId replica, TimeNs now_ns) {
  const auto home = std::find(group_.homes.begin(), group_.homes.end(), replica);
  record_.steps_meanwhile += replica == first() ? 1 : 0;
  if (joint_ && home != group_.homes.end()) {
    joint_->done(static_cast<std::size_t>(home - group_.homes.begin()), now_ns);
  }
}

// The direction has changed while steps were to end.
void Regrouping::go_back_to_moving() {
  stage_ = Stage::kMoving;
  plan();
  let_homes_go_on();
}

void Regrouping::part() {
  if (together_) {
    go_back_to_moving();
    return;
  }
  if (!all_quiet()) {
    return;
  }
  config_.devices->part(first());
  for (std::size_t home = 0; home < count(); ++home) {
    at(group_.homes[home]).executor->part();
    engine(home).await_step();
  }
  joint_.reset();
  end();
}

// Lets the engines rule themselves again: one of the group, or those of all homes.
void Regrouping::end() {
  stage_ = Stage::kEnded;
  record_.done_ns = now_ns_;
  const std::size_t engines = together_ ? 1 : count();
  for (std::size_t home = 0; home < engines; ++home) {
    const SchedulerConfig& limits = engine(home).limits();
    const std::int64_t most = std::max(limits.kv_blocks, limits.largest_kv_blocks);
    engine(home).limit_steps(std::numeric_limits<int>::max());
    engine(home).promise_kv(most, most);
    // A home has the form that it had, unless an operator chose another form for the group.
    bool resumes = together_ || !engine(home).at_pin();
    resumes = resumes || !restore_home(home);
    engine(home).hold_form(false);
    engine(home).go_on(now_ns_);
    if (resumes) {
      engine(home).resume_form(now_ns_);
    }
  }
}

// Waits a while, longer after each attempt.
void Regrouping::try_later(const std::string& why, TimeNs within_ns) {
  wait_.reason = why;
  wait_.until_ns = now_ns_ + (within_ns << std::min(wait_.attempts++, kMostDoublings));
}

std::optional<TimeNs> Regrouping::next_deadline_ns() const {
  return wait_.until_ns > now_ns_ ? std::optional(wait_.until_ns) : std::nullopt;
}

}  // namespace protean
