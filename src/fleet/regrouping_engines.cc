// How the KV of homes shrinks for a group, how their engines become one, and one becomes theirs
// again.

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "control/plan_regroup.h"
#include "cost/group_cost.h"
#include "fleet/regrouping.h"

namespace protean {
namespace {

// The first wait, doubled for each attempt in a row: about a step, since the end of one request may
// let the next attempt succeed.
constexpr TimeNs kRetryNs = 20 * kNsPerMs;

}  // namespace

Status check_morphs(const Engine& engine, ReplicaId replica, std::int64_t blocks) {
  return engine.form()
             ? Status()
             : make_error(ErrorCode::kInvalidArgument,
                          "KV of replica {} has to shrink to {} blocks: start the server with "
                          "--morph, or with that many blocks",
                          replica.value, blocks);
}

Status check_room(const Engine& engine, ReplicaId replica, std::int64_t blocks, bool may_preempt) {
  if (Status may = check_morphs(engine, replica, blocks); !may.ok()) {
    return may;
  }
  if (const std::int64_t needed = engine.largest_need(); needed > blocks) {
    return make_error(ErrorCode::kExhausted,
                      "KV of replica {} has to shrink to {} blocks, but a request needs {}: ask "
                      "again when it has ended",
                      replica.value, blocks, needed);
  }
  const std::int64_t used = engine.observe().kv_blocks_used;
  return may_preempt || used <= blocks
             ? Status()
             : make_error(ErrorCode::kExhausted,
                          "KV of replica {} has to shrink to {} blocks, but {} are in use",
                          replica.value, blocks, used);
}

Status check_shrunk(const GroupConfig& config, const std::vector<Station>& stations,
                    const GroupShape& group, bool insists) {
  for (const ReplicaId home : group.homes) {
    const Station& station = stations[static_cast<std::size_t>(home.value)];
    Status room = check_room(*station.engine, home, group.home.kv.blocks, insists);
    if (!room.ok() && !station.parked) {
      return room;
    }
  }
  const std::int64_t most = most_kv_blocks(config, group.wide);
  const std::int64_t before = group.blocks_apart();
  return insists || most > before
             ? Status()
             : make_error(ErrorCode::kExhausted,
                          "the group would have {} KV blocks, and its replicas have {} together",
                          most, before);
}

HomeBlocks GroupShape::home_blocks() const {
  std::vector<std::int64_t> each;
  for (const Form& form : home_forms()) {
    each.push_back(form.kv.blocks);
  }
  return HomeBlocks(std::move(each));
}

Form GroupShape::joined() const {
  return joined_form(home_forms());
}

Result<GroupShape> rebalanced(const GroupConfig& config, std::vector<ReplicaId> homes, GroupBy by,
                              std::vector<Form> forms) {
  if (by != GroupBy::kLayers) {
    return make_error(ErrorCode::kInvalidArgument,
                      "replicas whose devices have unequal memory divide no layers by shards: "
                      "group them by layers");
  }
  const Form& first = forms.front();
  for (const Form& form : forms) {
    if (!equally_precise(form, first) || form.kv.precision != first.kv.precision ||
        form.kv.block_tokens != first.kv.block_tokens) {
      return make_error(ErrorCode::kUnavailable,
                        "replicas have different forms, '{}' and '{}': ask for equal ones first",
                        to_string(first), to_string(form));
    }
  }
  Result<Form> wide = rebalanced_form_in(config.spec, forms, config.budget);
  if (!wide.ok()) {
    return wide.error();
  }
  GroupShape shape{
      .homes = std::move(homes), .by = GroupBy::kLayers, .home = {}, .wide = *std::move(wide)};
  shape.home = *std::min_element(forms.begin(), forms.end(), [](const Form& a, const Form& b) {
    return a.kv.blocks < b.kv.blocks;
  });
  shape.unequal = std::move(forms);
  return shape;
}

// Finds the forms on the way of pipelines of unequal length or memory. Returns why there is no way.
std::optional<Error> Regrouping::agree_unequal(std::vector<Form> forms) {
  Result<GroupShape> shape = rebalanced(config_, group_.homes, group_.by, std::move(forms));
  if (!shape.ok()) {
    return shape.error();
  }
  static_cast<GroupShape&>(group_) = *std::move(shape);
  joined_ = form_ = group_.joined();
  return std::nullopt;
}

std::int64_t Regrouping::preemptions() const {
  std::int64_t sum = 0;
  for (const ReplicaId home : group_.homes) {
    sum += stations_[static_cast<std::size_t>(home.value)].engine->observe().preemptions_total;
  }
  return sum;
}

// Lets the KV of all homes shrink between two steps. Returns why it cannot. Sequences that run are
// preempted only if an operator asks for the group.
std::optional<Error> Regrouping::shrink_homes(std::int64_t blocks) {
  GroupShape shrunk{.homes = group_.homes,
                    .by = group_.by,
                    .home = group_.home,
                    .wide = {},
                    .shrunk_from = group_.home.kv.blocks};
  shrunk.home.kv.blocks = blocks;
  shrunk.wide = divided_form(shrunk.home, static_cast<int>(count()), group_.by).value();
  if (Status may = check_shrunk(config_, stations_, shrunk, haste_ == Haste::kPreempts);
      !may.ok()) {
    return may.error();
  }
  group_.shrunk_from = shrunk.shrunk_from;
  wait_.preemptions = preemptions();
  hold_all();  // so that no request takes the blocks to which others move
  for (std::size_t home = 0; home < count(); ++home) {
    const Result<Morph> morph = engine(home).lead_form({.layers = group_.home.layer_precision,
                                                        .embeddings = group_.home.embeddings,
                                                        .kv_blocks = blocks},
                                                       now_ns_);
    if (!morph.ok()) {
      return morph.error();
    }
    engine(home).promise_kv(blocks, group_.shrunk_from);
  }
  return std::nullopt;
}

// Gives a home the KV back that it had before the group. Returns false if it cannot have it.
bool Regrouping::grow_home(std::size_t home) {
  const std::optional<Form> form = engine(home).form();
  return !form || !at(group_.homes[home]).failure.empty() ||
         engine(home)
             .lead_form({.layers = form->layer_precision,
                         .embeddings = form->embeddings,
                         .kv_blocks = group_.shrunk_from},
                        now_ns_)
             .ok();
}

// Makes one engine of all.
void Regrouping::unify() {
  if (!together_) {
    go_back_to_moving();
    return;
  }
  if (!all_quiet()) {
    return;
  }
  std::vector<EngineState> states;
  for (std::size_t home = 0; home < count(); ++home) {
    states.push_back(engine(home).release_all(now_ns_));
    Station& station = at(group_.homes[home]);
    station.executor->part();
    station.parked = home > 0;
    if (station.parked) {
      station.engine->handle({now_ns_, Tick{}});  // tells that it has no requests
    }
  }
  joint_.reset();
  EngineState all = join_homes(std::move(states), group_.home_blocks());
  for (const auto& [request, live] : all.live) {
    news_.moved.emplace_back(request, first());
  }
  config_.devices->unify(first());
  EngineConfig config = config_.wide_engine(group_.wide);
  check(config.scheduler.kv_blocks == group_.wide.kv.blocks, "a group begins with its homes' KV");
  config.replica = first();
  if (config.morph) {
    config.morph->weighed = weighs(config_);
    config.morph->ids_after = ++*generation_ << 20;
  }
  Station& station = at(first());
  group_.first =
      std::exchange(station.engine, std::make_unique<Engine>(config, *station.executor, sink_));
  wide().absorb(std::move(all), now_ns_);
  end();
}

// Counts what a step moves. `live` are the blocks of each home that move with it, if any do.
void Regrouping::count_bytes(const HoldShards& hold,
                             const std::vector<std::vector<BlockId>>& live) {
  const auto sum = [](const std::vector<std::int64_t>& each) {
    return std::accumulate(each.begin(), each.end(), std::int64_t{0});
  };
  record_.weight_bytes += sum(weight_bytes_fetched(config_.spec, form_, hold));
  if (live.empty()) {
    return;
  }
  std::vector<std::int64_t> blocks;
  for (const std::vector<BlockId>& some : live) {
    blocks.push_back(std::ssize(some));
  }
  record_.kv_bytes += sum(kv_bytes_received(config_.spec, form_, hold, home_devices(), blocks));
}

bool Regrouping::at_home_form() {
  const std::optional<Form> form = wide().form();
  return !form || (wide().form_at_rest() && equally_precise(*form, group_.wide) &&
                   form->kv.blocks == group_.wide.kv.blocks);
}

// Takes the group's form back to the one with which it began.
void Regrouping::shrink() {
  if (together_) {
    end();
    return;
  }
  const bool changing = asked_ && !wide().form_at_rest();
  if (now_ns_ < wait_.until_ns || changing) {
    return;
  }
  // From now on the group takes no request that a home could not hold, else parting might never
  // begin.
  wide().hold_form(true);
  wide().promise_kv(group_.home.kv.blocks, group_.wide.kv.blocks);
  if (at_home_form()) {
    if (wide().exchanges_kv()) {
      wait_.reason = "the group is still moving requests to or from another replica";
      return;
    }
    wide().hold_steps();
    stage_ = Stage::kDividing;
    return;
  }
  const bool again = std::exchange(asked_, true);
  const Result<Morph> morph = wide().lead_form({.layers = group_.wide.layer_precision,
                                                .embeddings = group_.wide.embeddings,
                                                .kv_blocks = group_.wide.kv.blocks},
                                               now_ns_);
  wait_.reason = morph.ok() ? "the group's form goes back to the replicas'" : morph.error().message;
  if (again || !morph.ok()) {
    try_later(wait_.reason, kRetryNs);
  }
}

// Gives each request a home and makes one engine for each.
void Regrouping::divide() {
  if (together_) {
    stage_ = Stage::kShrinking;
    return;
  }
  if (!wide().quiet()) {
    return;
  }
  std::vector<int> most_sequences = {group_.first->limits().max_num_seqs};
  for (std::size_t home = 1; home < count(); ++home) {
    most_sequences.push_back(engine(home).limits().max_num_seqs);
  }
  EngineState all = wide().release_all(now_ns_);
  Result<EngineStates> split = split_homes(all,
                                           {.blocks = group_.home_blocks(),
                                            .block_tokens = group_.home.kv.block_tokens,
                                            .max_num_seqs = std::move(most_sequences)},
                                           hurries());
  if (!split.ok()) {
    wide().absorb(std::move(all), now_ns_);
    wide().go_on(now_ns_);
    try_later(split.error().message, kRetryNs);
    stage_ = Stage::kShrinking;
    return;
  }
  wait_.reason.clear();
  wait_.attempts = 0;
  record_.preempted += split->preempted;
  for (std::vector<BlockMove>& wave : split->moves) {
    record_.blocks_moved += std::ssize(wave);
    at(first()).executor->own().move_blocks(std::move(wave));
  }
  config_.devices->divide(first());
  at(first()).engine = std::move(group_.first);
  form_ = group_.wide;
  begin_joint_steps();
  for (std::size_t home = 0; home < count(); ++home) {
    at(group_.homes[home]).parked = false;
    for (const auto& [request, live] : split->homes[home].live) {
      news_.moved.emplace_back(request, group_.homes[home]);
    }
    if (broken()) {
      engine(home).hold_steps();
    }
    engine(home).absorb(std::move(split->homes[home]), now_ns_);
  }
  give_up_kv();
  let_homes_go_on();
}

}  // namespace protean
