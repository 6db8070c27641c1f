// Requests that decode and move between replicas with their KV.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/units.h"
#include "fleet/fleet.h"

namespace protean {
namespace {

// Llumnix moves one request between two replicas at a time. If an operator asks for moves, a few
// keep the copies going while a paused request waits for its step.
constexpr int kMigrationsToOne = 4;

}  // namespace

void Fleet::on(const BlocksCopied& copied, TimeNs now_ns) {
  const auto migration = moves_.running.find(copied.id);
  if (migration != moves_.running.end()) {  // else a replica that takes part has failed meanwhile
    watches_[index_of(migration->second.to)].since_ns = now_ns;
    follow(copied.id, migration->second.steps.copied(now_ns));
  }
}

void Fleet::on(const WantMigration& want, ReplicaId from, TimeNs now_ns) {
  const Result<int> begun = migrate(from, want.to, want.requests, now_ns);
  OutputBatch batch = batch_of(from, now_ns);
  batch.outputs.emplace_back(MigrationAnswered{want.wish_id, begun});
  batch.migrations = changed_migrations();
  sink_.emit(std::move(batch));
}

Result<int> Fleet::migrate(ReplicaId from, ReplicaId to, int requests, TimeNs now_ns) {
  if (exchange_ == nullptr || from == to) {
    return make_error(ErrorCode::kInvalidArgument,
                      "requests cannot move from replica {} to replica {}: name two replicas of a "
                      "server that has several",
                      from.value, to.value);
  }
  for (const ReplicaId replica : {from, to}) {
    if (!may_migrate(replica)) {
      return make_error(ErrorCode::kUnavailable, "replica {} {}", replica.value, why_not(replica));
    }
  }
  const auto moves = [this](RequestId request) {
    return std::any_of(moves_.running.begin(), moves_.running.end(),
                       [&](const auto& one) { return one.second.steps.request() == request; }) ||
           std::any_of(moves_.queued.begin(), moves_.queued.end(),
                       [&](const ToMigrate& one) { return one.request == request; });
  };
  int chosen = 0;
  for (const RequestId request : at(from).decoding()) {
    if (chosen == requests) {
      break;
    }
    if (!moves(request)) {
      moves_.queued.push_back({request, from, to});
      chosen += begin_migrations(now_ns) ? 1 : 0;
    }
  }
  return chosen;
}

bool Fleet::may_migrate(ReplicaId replica) const {
  return !grouping_.changes(replica) && in_service(index_of(replica));
}

// Begins the migrations that wait, as far as few move to the same replica. Returns false if the
// last one of them has ended already.
bool Fleet::begin_migrations(TimeNs now_ns) {
  bool last_goes_on = true;
  for (std::size_t i = 0; i < moves_.queued.size();) {
    const ToMigrate next = moves_.queued[i];
    if (std::count_if(moves_.running.begin(), moves_.running.end(), [&](const auto& one) {
          return one.second.to == next.to;
        }) >= kMigrationsToOne) {
      ++i;
      last_goes_on = true;
      continue;
    }
    moves_.queued.erase(moves_.queued.begin() + static_cast<std::ptrdiff_t>(i));
    last_goes_on = may_migrate(next.from) && may_migrate(next.to) && begin_migration(next, now_ns);
  }
  return last_goes_on;
}

// Returns false if the migration has ended already.
bool Fleet::begin_migration(const ToMigrate& next, TimeNs now_ns) {
  const CopyId id{++moves_.last_copy};
  Migration& migration =
      moves_.running
          .try_emplace(id,
                       Migration{next.from, next.to, {next.request, at(next.from), at(next.to)}})
          .first->second;
  auto blocks = migration.steps.begin(now_ns);
  const bool goes_on = !migration.steps.ended();
  follow(id, std::move(blocks));
  return goes_on;
}

// Lets replicas and groups that run short of KV give requests to others, each one at a time. Loads
// change by events only, so no clock is needed.
void Fleet::balance(TimeNs now_ns) {
  if (dispatch_.migrate == MigratePolicy::kOff || exchange_ == nullptr) {
    return;
  }
  std::vector<BalanceCandidate> candidates;
  std::vector<std::size_t> replicas;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (may_migrate(replica) && !migrates(replica)) {
      const Observation& load = seen_[i];
      const bool has_place =
          load.running + load.waiting < stations_[i].engine->limits().max_num_seqs;
      const bool closing = scaling_.forms_groups() && is_closing(scaling_.candidate_of(i));
      // What moves to a replica that waits for its turn would wait with it.
      const bool waits = stations_[i].executor->own().awaits_turn();
      candidates.push_back(
          {.freeness = freeness(load), .has_place = has_place && !closing && !waits});
      replicas.push_back(i);
    }
  }
  for (const auto& [giver, taker] : pair_by_freeness(candidates)) {
    if (const auto request = to_give(replicas[giver], replicas[taker])) {
      begin_migration({*request, ReplicaId{static_cast<std::int32_t>(replicas[giver])},
                       ReplicaId{static_cast<std::int32_t>(replicas[taker])}},
                      now_ns);
    }
  }
}

// Returns the first request, in the order of Scheduler::all_decoding(), that should move.
std::optional<RequestId> Fleet::to_give(std::size_t giver, std::size_t taker) const {
  const Engine& from = *stations_[giver].engine;
  const Engine& to = *stations_[taker].engine;
  if (!evens_out(seen_[giver], seen_[taker], 1)) {
    return std::nullopt;  // nor does any request, whose blocks are at least as many
  }
  for (const RequestId request : from.decoding()) {
    const Scheduler::Decoding now = from.decoding(request).value();
    const std::int64_t blocks = ceil_div<std::int64_t>(now.computed, from.block_tokens());
    if (to.has_room_for(now) && evens_out(seen_[giver], seen_[taker], blocks)) {
      return request;
    }
  }
  return std::nullopt;
}

bool Fleet::migrates(ReplicaId replica) const {
  const auto concerns = [replica](const auto& one) {
    return one.from == replica || one.to == replica;
  };
  return std::any_of(moves_.running.begin(), moves_.running.end(),
                     [&](const auto& one) { return concerns(one.second); }) ||
         std::any_of(moves_.queued.begin(), moves_.queued.end(), concerns);
}

// Lets the migrations go on whose request has left a step.
void Fleet::advance_migrations(TimeNs now_ns) {
  for (auto next = moves_.running.begin(); next != moves_.running.end();) {
    auto& [id, migration] = *next++;
    follow(id, migration.steps.source_advanced(now_ns));
  }
  begin_migrations(now_ns);
}

Migrations Fleet::migrations() const {
  std::map<std::pair<ReplicaId, ReplicaId>, MigratingRequests> all;
  const auto between = [&all](ReplicaId from, ReplicaId to) -> MigratingRequests& {
    return all.try_emplace({from, to}, MigratingRequests{.from = from, .to = to}).first->second;
  };
  for (const auto& [id, migration] : moves_.running) {
    ++between(migration.from, migration.to).moving;
  }
  for (const ToMigrate& next : moves_.queued) {
    ++between(next.from, next.to).queued;
  }
  Migrations listed;
  for (const auto& [replicas, requests] : all) {
    listed.push_back(requests);
  }
  return listed;
}

// Returns which requests move, to be told; null if that has not changed.
std::shared_ptr<const Migrations> Fleet::changed_migrations() {
  Migrations now = migrations();
  if (now == moves_.told) {
    return nullptr;
  }
  moves_.told = now;
  return std::make_shared<const Migrations>(std::move(now));
}

void Fleet::tell_migrations(TimeNs now_ns) {
  if (auto changed = changed_migrations()) {
    OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
    batch.migrations = std::move(changed);
    sink_.emit(std::move(batch));
  }
}

// Does what a migration asks for, and forgets it once it has ended.
void Fleet::follow(CopyId id, std::optional<std::vector<BlockMove>> blocks) {
  const Migration& migration = moves_.running.at(id);
  if (blocks) {
    exchange_->copy(id, migration.from, migration.to, *std::move(blocks));
  }
  if (!migration.steps.ended()) {
    return;
  }
  const auto owner = owner_.find(migration.steps.request());
  if (migration.steps.adopted() && owner != owner_.end()) {
    owner->second = migration.to;
  }
  moves_.running.erase(id);
}

}  // namespace protean
