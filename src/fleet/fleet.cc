#include "fleet/fleet.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"

namespace protean {

Fleet::Fleet(Dispatch dispatch, const std::vector<Member>& members, TokenSink& sink,
             KvExchange* exchange, GroupConfig groups)
    : dispatch_(dispatch),
      sink_(sink),
      stations_(members.size()),
      grouping_(std::move(groups), stations_, *this),
      seen_(members.size()),
      succession_(stations_, exchange, *this),
      scaling_(grouping_, stations_, seen_, formed_),
      migrations_(grouping_, stations_, seen_, exchange),
      watch_(grouping_, stations_, migrations_),
      weighing_(grouping_, stations_, formed_, scaling_.most_blocks()),
      dropping_(grouping_, stations_, seen_),
      demand_(static_cast<int>(members.size()), grouping_.config().scaler_after_ns) {
  check(!members.empty(), "a fleet has a replica");
  succession_.serves(members.front().form);
  TokenSink& outputs = *this;
  for (std::size_t i = 0; i < members.size(); ++i) {
    EngineConfig config = members[i].engine;
    config.replica = ReplicaId{static_cast<std::int32_t>(i)};
    if (config.morph) {
      config.morph->weighed = weighs(grouping_.config());
    }
    stations_[i].executor = std::make_unique<HomeExecutor>(*members[i].executor);
    stations_[i].engine = std::make_unique<Engine>(config, *stations_[i].executor, outputs);
    seen_[i] = stations_[i].engine->observe();
    watch_.set_timeout(config.replica, members[i].device_timeout_ns);
  }
}

void Fleet::begin(TimeNs now_ns) {
  for (const Station& station : stations_) {
    station.engine->handle({now_ns, Tick{}});
  }
  regroup(now_ns);
  tell_replicas_wanted(now_ns);
  now_ns_ = now_ns;
}

void Fleet::handle(Event event) {
  const TimeNs now_ns = event.at_ns;
  const ReplicaId replica = event.replica;
  const auto pass_on = [&] { at(replica).handle(std::move(event)); };
  if (index_of(replica) >= stations_.size()) {
    succession_.on(event);
    event.what = Tick{};
  }
  std::visit(Overloaded{[&](Arrival& arrival) { on(arrival, now_ns); },
                        [&](const Cancel& cancel) { on(cancel, now_ns); },
                        [&](const BlocksCopied& copied) { on(copied, now_ns); },
                        [&](const DevicesFailed& failed) { on(failed, replica, now_ns); },
                        [&](const WantMigration& want) { on(want, replica, now_ns); },
                        [&](const WantGroups& want) { on(want, now_ns); },
                        [&](WantForm& want) { on(want, replica, now_ns); },
                        [&](const WantQuota&) {
                          if (grouping_.engine_lives(replica)) {
                            pass_on();
                          }
                        },
                        [&](const VariantsPacked& packed) { on(packed, now_ns); },
                        [&](const Tick&) { tick(now_ns); },
                        [&](const StepDone& done) {
                          if (!is_late(done, replica)) {
                            watch_.ended(replica, now_ns);
                            grouping_.step_done(replica, now_ns);
                            pass_on();
                          }
                        },
                        [&](const MorphReady& ready) {
                          if (!grouping_.on(ready, now_ns) && grouping_.engine_lives(replica)) {
                            pass_on();
                          }
                        },
                        [&](const MorphDone& done) {
                          watch_.ended(replica, now_ns);
                          if (!grouping_.on(done, now_ns) && grouping_.engine_lives(replica)) {
                            pass_on();
                          }
                        }},
             event.what);
  migrations_.advance(now_ns);
  follow_moved(migrations_.take_moved());
  advance_succession(now_ns);
  spread_queue(now_ns);
  if (dispatch_.migrate == MigratePolicy::kLoad) {
    migrations_.balance(scaling_, now_ns);
    follow_moved(migrations_.take_moved());
  }
  watch(now_ns);
  regroup(now_ns);
  tell_replicas_wanted(now_ns);
  tell_migrations(now_ns);
  now_ns_ = now_ns;
}

// Lets groups form and part, and tells operators what has changed.
void Fleet::regroup(TimeNs now_ns) {
  grouping_.advance(now_ns);
  for (std::vector<ReplicaId>& replicas : grouping_.take_parted()) {
    watch_.parted(std::move(replicas));
  }
  count_failures(now_ns);
  formed_.forget_parted(grouping_);
  if (scaling_.forms_groups() || !held_.empty()) {
    serve_held(now_ns);
  }
  const GroupConfig& config = grouping_.config();
  const bool may_part = held_.empty() || config.scale == ScalePolicy::kLayers;
  if (scaling_.forms_groups() && config.scale != ScalePolicy::kJoint && may_part &&
      !grouping_.busy()) {
    scale_down(now_ns);
  }
  drop(now_ns);
  if (weighs(config)) {
    weigh(now_ns);
  }
  follow_moved(grouping_.take_moved());
  if (auto status = grouping_.status_if_changed()) {
    OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
    batch.groups = std::move(status);
    sink_.emit(std::move(batch));
  }
}

// Requests that have not ended are in other replicas now.
void Fleet::follow_moved(const std::vector<std::pair<RequestId, ReplicaId>>& moved) {
  for (const auto& [request, replica] : moved) {
    const auto owner = owner_.find(request);
    if (owner != owner_.end()) {
      owner->second = replica;
    }
  }
}

// Forms or parts a group if that pays, else lets engines lower their precision as their policies
// decide. If groups cannot be had, nothing is weighed for a while.
void Fleet::weigh(TimeNs now_ns) {
  if (!weighing_.due(now_ns)) {
    return;
  }
  if (held_.empty() && attempts_.may_ask(now_ns)) {
    for (const Weighing::Proposal& proposal : weighing_.proposals(now_ns)) {
      if (ask(proposal.wish, proposal.reason, nullptr, now_ns).ok()) {
        return;
      }
      attempts_.refused(now_ns);
    }
  }
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (in_service(i)) {
      stations_[i].engine->allow_lowering(now_ns);
    }
  }
}

void Fleet::on(Arrival& arrival, TimeNs now_ns) {
  const RequestId request = arrival.request.id;
  const std::int64_t prompt_tokens = std::ssize(arrival.request.prompt);
  const std::int64_t blocks = scaling_.blocks_needed(arrival.request);
  place(arrival, now_ns);
  if (weighs(grouping_.config()) && accepted(request)) {
    weighing_.arrived(prompt_tokens, blocks, now_ns);
  }
}

// Returns true if the request was not refused and has not ended.
bool Fleet::accepted(RequestId request) const {
  return owner_.contains(request) || std::ranges::any_of(held_, [&](const HeldRequest& held) {
           return held.asks().id == request;
         });
}

void Fleet::place(Arrival& arrival, TimeNs now_ns) {
  candidates_.views.clear();
  candidates_.replicas.clear();
  std::size_t turn = 0;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (in_service(i)) {
      turn = i < turn_ ? turn + 1 : turn;
      candidates_.views.push_back({seen_[i], {}});
      candidates_.replicas.push_back(i);
    }
  }
  if (candidates_.views.empty()) {
    await_survivors(arrival, now_ns);
    return;
  }
  std::size_t chosen = 0;
  std::vector<std::size_t> to_grow;  // candidates that can hold the request with their neighbours
  if (candidates_.views.size() > 1 || scaling_.forms_groups()) {
    for (std::size_t i = 0; i < candidates_.views.size(); ++i) {
      candidates_.views[i].expected =
          stations_[candidates_.replicas[i]].engine->prospect(arrival.request, now_ns);
    }
    if (scaling_.forms_groups()) {
      const bool fits = std::ranges::any_of(
          candidates_.views, [](const auto& view) { return !view.expected.refusal; });
      if (const auto failed = fits ? std::nullopt : scaling_.failed_but_needed(arrival.request)) {
        refuse(
            arrival.request.id,
            make_error(ErrorCode::kUnavailable,
                       "the request needs a group of replicas, and replica {} is out of service: "
                       "it {}. Start the server again",
                       failed->value, stations_[index_of(*failed)].failure),
            now_ns);
        return;
      }
      if (scaling_.must_wait(arrival.request, candidates_, !held_.empty())) {
        keep_waiting(arrival, std::nullopt, now_ns);
        return;
      }
      to_grow = scaling_.overlook_length(arrival.request, candidates_);
      scaling_.narrow_down(arrival.request, candidates_);
    }
    chosen = choose_replica(dispatch_.router, candidates_.views, turn % candidates_.views.size());
  }
  const bool grows = std::find(to_grow.begin(), to_grow.end(), chosen) != to_grow.end();
  chosen = candidates_.replicas[chosen];
  turn_ = (chosen + 1) % stations_.size();
  const ReplicaId replica{static_cast<std::int32_t>(chosen)};
  if (grows) {
    keep_waiting(arrival, grouping_.intact() ? std::optional(replica) : std::nullopt, now_ns);
    return;
  }
  owner_.emplace(arrival.request.id, replica);
  at(replica).handle({now_ns, std::move(arrival), replica});
}

void Fleet::on(const BlocksCopied& copied, TimeNs now_ns) {
  if (const auto to = migrations_.copied(copied.id, now_ns)) {
    watch_.ended(*to, now_ns);
  }
}

void Fleet::on(const WantMigration& want, ReplicaId from, TimeNs now_ns) {
  const Result<int> begun = migrate(from, want.to, want.requests, now_ns);
  OutputBatch batch = batch_of(from, now_ns);
  batch.outputs.emplace_back(MigrationAnswered{want.wish_id, begun});
  batch.migrations = migrations_.changed();
  sink_.emit(std::move(batch));
}

Result<int> Fleet::migrate(ReplicaId from, ReplicaId to, int requests, TimeNs now_ns) {
  if (!migrations_.exchanges() || from == to) {
    return make_error(ErrorCode::kInvalidArgument,
                      "requests cannot move from replica {} to replica {}: name two replicas of a "
                      "server that has several",
                      from.value, to.value);
  }
  for (const ReplicaId replica : {from, to}) {
    if (!migrations_.may_migrate(replica)) {
      return make_error(ErrorCode::kUnavailable, "replica {} {}", replica.value, why_not(replica));
    }
  }
  const int chosen = migrations_.choose(from, to, requests, now_ns);
  follow_moved(migrations_.take_moved());
  return chosen;
}

void Fleet::tell_migrations(TimeNs now_ns) {
  if (auto changed = migrations_.changed()) {
    OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
    batch.migrations = std::move(changed);
    sink_.emit(std::move(batch));
  }
}

void Fleet::on(const WantGroups& want, TimeNs now_ns) {
  auto changes = grouping_.want(want.wish, "an operator's wish", true, now_ns);
  if (changes.ok()) {
    formed_.forget(want.wish);
  }
  OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
  batch.outputs.emplace_back(GroupsAnswered{want.wish_id, std::move(changes)});
  batch.groups = grouping_.status_if_changed();  // an operator who has the answer may look at once
  sink_.emit(std::move(batch));
}

void Fleet::on(WantForm& want, ReplicaId replica, TimeNs now_ns) {
  const bool changes = grouping_.changes(replica);
  const Station& station = stations_[index_of(replica)];
  const bool serves =
      !changes && !station.parked && station.failure.empty() && !succession_.running();
  const std::int64_t least =
      serves && grouping_.is_group(replica) ? grouping_.least_kv_blocks(replica) : 0;
  if (serves && want.wish.kv_blocks.value_or(least) >= least) {
    at(replica).handle({now_ns, std::move(want), replica});
    return;
  }
  OutputBatch batch = batch_of(replica, now_ns);
  if (serves) {
    batch.outputs.emplace_back(WishAnswered{
        want.wish_id, make_error(ErrorCode::kExhausted,
                                 "{} KV blocks: a group keeps at least the {} blocks of its "
                                 "replicas: ask for more, or split it first",
                                 *want.wish.kv_blocks, least)});
  } else {
    batch.outputs.emplace_back(WishAnswered{
        want.wish_id,
        make_error(ErrorCode::kUnavailable, "replica {} {}", replica.value, why_not(replica))});
  }
  sink_.emit(std::move(batch));
}

// Returns why an operator cannot ask something of a replica that does not serve, or that changes.
std::string Fleet::why_not(ReplicaId replica) const {
  if (grouping_.changes(replica)) {
    return "is joining or leaving a group: ask again when that has ended";
  }
  if (succession_.running()) {
    return "hands its requests over to other devices: ask again when that has ended";
  }
  return stations_[index_of(replica)].parked ? "serves in a group: name the group's first replica"
                                             : "is out of service: start the server again";
}

// A parked engine is told when it serves again (SteeringState::packing).
void Fleet::on(const VariantsPacked& packed, TimeNs now_ns) {
  for (const Station& station : stations_) {
    if (!station.parked) {
      station.engine->handle({now_ns, packed});
    }
  }
}

void Fleet::on(const Cancel& cancel, TimeNs now_ns) {
  const auto owner = owner_.find(cancel.request);
  if (owner != owner_.end()) {
    at(owner->second).handle({now_ns, cancel});
    return;
  }
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].asks().id == cancel.request) {
      end_held(i, FinishReason::kCancelled, now_ns);
      return;
    }
  }
}

void Fleet::tick(TimeNs now_ns) {
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    Engine& engine = *stations_[i].engine;
    const auto deadline_ns = engine.next_deadline_ns();
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (grouping_.engine_lives(replica) && deadline_ns && *deadline_ns <= now_ns) {
      engine.handle({now_ns, Tick{}});
    }
  }
}

// Returns the least loaded replica without a queue that is not about to part.
std::optional<std::size_t> Fleet::least_loaded_without_queue() const {
  std::optional<std::size_t> least;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (in_service(i) && seen_[i].waiting == 0 &&
        (!least || seen_[i].running < seen_[*least].running) && !scaling_.closes(i)) {
      least = i;
    }
  }
  return least;
}

// Moves a request from the longest queue to the least loaded replica without a queue, if it has a
// place there at once, in time, and here it has none or a later first token. One event moves one
// request: each event that ends a step looks again. Homes of a change in which KV was given up have
// no place until it has moved.
void Fleet::spread_queue(TimeNs now_ns) {
  std::optional<std::size_t> longest;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (in_service(i) && seen_[i].waiting > (longest ? seen_[*longest].waiting : 0)) {
      longest = i;
    }
  }
  const auto emptiest = longest ? least_loaded_without_queue() : std::nullopt;
  if (!emptiest) {
    return;
  }
  Engine& from = *stations_[*longest].engine;
  Engine& to = *stations_[*emptiest].engine;
  const Sequence* sequence =
      from.first_movable(seen_[*emptiest].kv_blocks - seen_[*emptiest].kv_blocks_used);
  if (sequence == nullptr) {
    return;
  }
  const Prospect here = from.prospect(*sequence);
  const Prospect there = to.prospect(*sequence);
  const bool sooner = here.before.without_place > 0 || there.first_token_ns < here.first_token_ns;
  const TimeNs latest_ns = sequence->asks.deadlines.first_token_ns;
  const bool late = latest_ns >= 0 && sequence->usage.output_tokens == 0 &&
                    now_ns + there.first_token_ns > latest_ns;
  if (there.refusal || there.before.without_place > 0 || !sooner || late) {
    return;
  }
  const RequestId request = sequence->asks.id;
  owner_[request] = ReplicaId{static_cast<std::int32_t>(*emptiest)};
  to.adopt(from.release(request, now_ns), {}, now_ns);
}

std::optional<TimeNs> Fleet::next_deadline_ns() const {
  std::optional<TimeNs> next_ns = grouping_.next_deadline_ns();
  if (const auto wanted_ns = demand_.next_ns()) {
    next_ns = std::min(next_ns.value_or(*wanted_ns), *wanted_ns);
  }
  if (const auto vote_ns = dropping_.next_vote_ns(); vote_ns && !grouping_.busy()) {
    const TimeNs look_ns = std::max(*vote_ns, now_ns_ + kNsPerS / 10);
    next_ns = std::min(next_ns.value_or(look_ns), look_ns);
  }
  for (const HeldRequest& held : held_) {
    if (held.expires_ns() >= 0) {
      next_ns = std::min(next_ns.value_or(held.expires_ns()), held.expires_ns());
    }
  }
  const bool tries_again = !held_.empty() || grouping_.config().drop == DropPolicy::kPaper;
  if (tries_again && !attempts_.may_ask(now_ns_)) {
    const TimeNs ask_ns = attempts_.not_before_ns();
    next_ns = std::min(next_ns.value_or(ask_ns), ask_ns);
  }
  if (weighs(grouping_.config()) && !formed_.empty() && !grouping_.busy()) {
    const TimeNs weighing_ns = std::max(weighing_.next_ns(), now_ns_ + 1);
    next_ns = std::min(next_ns.value_or(weighing_ns), weighing_ns);
  }
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const auto deadline_ns = stations_[i].engine->next_deadline_ns();
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (grouping_.engine_lives(replica) && deadline_ns) {
      next_ns = std::min(next_ns.value_or(*deadline_ns), *deadline_ns);
    }
  }
  for (const auto within_ns : {watch_.look_within_ns(), succession_.look_within_ns()}) {
    if (within_ns) {
      next_ns = std::min(next_ns.value_or(now_ns_ + *within_ns), now_ns_ + *within_ns);
    }
  }
  return next_ns;
}

// Returns a batch without outputs that shows the replica's load. Everything that it tells must have
// happened before.
OutputBatch Fleet::batch_of(ReplicaId replica, TimeNs now_ns) const {
  OutputBatch batch{.at_ns = now_ns, .replica = replica};
  batch.observation = at(replica).observe();
  return batch;
}

bool Fleet::idle() const {
  return held_.empty() &&
         std::all_of(stations_.begin(), stations_.end(),
                     [](const Station& station) { return station.engine->idle(); });
}

void Fleet::emit(OutputBatch batch) {
  seen_[index_of(batch.replica)] = batch.observation;
  for (const Output& output : batch.outputs) {
    std::visit(Overloaded{[&](const Finished& finished) { owner_.erase(finished.request); },
                          [&](const Refused& refused) { owner_.erase(refused.request); },
                          [](const auto&) {}},
               output);
  }
  sink_.emit(std::move(batch));
}

}  // namespace protean
