// How the engines of homes become one, and one becomes theirs again.

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "cost/group_cost.h"
#include "fleet/regrouping.h"

namespace protean {
namespace {

// The first wait, doubled for each attempt in a row: about a step, since the end of one request may
// let the next attempt succeed.
constexpr TimeNs kRetryNs = 20 * kNsPerMs;

}  // namespace

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
