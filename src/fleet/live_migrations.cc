#include "fleet/live_migrations.h"

#include <algorithm>
#include <iterator>

#include "fleet/balancing.h"

namespace protean {
namespace {

// Llumnix moves one request between two replicas at a time. If an operator asks for moves, a few
// keep the copies going while a paused request waits for its step.
constexpr int kMigrationsToOne = 4;

}  // namespace

LiveMigrations::LiveMigrations(const Grouping& grouping, const std::vector<Station>& stations,
                               const std::vector<Observation>& seen, KvExchange* exchange)
    : grouping_(grouping), stations_(stations), seen_(seen), exchange_(exchange) {}

Engine& LiveMigrations::at(ReplicaId replica) const {
  return *stations_.at(static_cast<std::size_t>(replica.value)).engine;
}

bool LiveMigrations::may_migrate(ReplicaId replica) const {
  return !grouping_.changes(replica) && grouping_.in_service(replica);
}

int LiveMigrations::choose(ReplicaId from, ReplicaId to, int requests, TimeNs now_ns) {
  const auto moves = [this](RequestId request) {
    return std::any_of(running_.begin(), running_.end(),
                       [&](const auto& one) { return one.second.steps.request() == request; }) ||
           std::any_of(queued_.begin(), queued_.end(),
                       [&](const ToMigrate& one) { return one.request == request; });
  };
  int chosen = 0;
  for (const RequestId request : at(from).decoding()) {
    if (chosen == requests) {
      break;
    }
    if (!moves(request)) {
      queued_.push_back({request, from, to});
      chosen += begin_queued(now_ns) ? 1 : 0;
    }
  }
  return chosen;
}

std::optional<ReplicaId> LiveMigrations::copied(CopyId id, TimeNs now_ns) {
  const auto migration = running_.find(id);
  if (migration == running_.end()) {
    return std::nullopt;
  }
  const ReplicaId to = migration->second.to;
  follow(id, migration->second.steps.copied(now_ns));
  return to;
}

void LiveMigrations::advance(TimeNs now_ns) {
  for (auto next = running_.begin(); next != running_.end();) {
    auto& [id, migration] = *next++;
    follow(id, migration.steps.source_advanced(now_ns));
  }
  begin_queued(now_ns);
}

void LiveMigrations::forget(ReplicaId replica, TimeNs now_ns) {
  for (auto next = running_.begin(); next != running_.end();) {
    Migration& migration = next->second;
    const bool concerned = migration.from == replica || migration.to == replica;
    if (concerned) {
      migration.steps.forget(now_ns);
    }
    next = concerned ? running_.erase(next) : std::next(next);
  }
}

bool LiveMigrations::copies_to(ReplicaId replica) const {
  return std::any_of(running_.begin(), running_.end(), [&](const auto& one) {
    return one.second.to == replica && one.second.steps.copies();
  });
}

// Begins the migrations that wait, as far as few move to the same replica. Returns false if the
// last one of them has ended already.
bool LiveMigrations::begin_queued(TimeNs now_ns) {
  bool last_goes_on = true;
  for (std::size_t i = 0; i < queued_.size();) {
    const ToMigrate next = queued_[i];
    if (std::count_if(running_.begin(), running_.end(), [&](const auto& one) {
          return one.second.to == next.to;
        }) >= kMigrationsToOne) {
      ++i;
      last_goes_on = true;
      continue;
    }
    queued_.erase(queued_.begin() + static_cast<std::ptrdiff_t>(i));
    last_goes_on = may_migrate(next.from) && may_migrate(next.to) && begin(next, now_ns);
  }
  return last_goes_on;
}

// Returns false if the migration has ended already.
bool LiveMigrations::begin(const ToMigrate& next, TimeNs now_ns) {
  const CopyId id{++last_copy_};
  Migration& migration =
      running_
          .try_emplace(id,
                       Migration{next.from, next.to, {next.request, at(next.from), at(next.to)}})
          .first->second;
  auto blocks = migration.steps.begin(now_ns);
  const bool goes_on = !migration.steps.ended();
  follow(id, std::move(blocks));
  return goes_on;
}

void LiveMigrations::balance(const GroupScaling& scaling, TimeNs now_ns) {
  if (exchange_ == nullptr) {
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
      const bool closing = scaling.forms_groups() && is_closing(scaling.candidate_of(i));
      // What moves to a replica that waits for its turn would wait with it.
      const bool waits = stations_[i].executor->own().awaits_turn();
      candidates.push_back(
          {.freeness = freeness(load), .has_place = has_place && !closing && !waits});
      replicas.push_back(i);
    }
  }
  for (const auto& [giver, taker] : pair_by_freeness(candidates)) {
    if (const auto request = to_give(replicas[giver], replicas[taker])) {
      begin({*request, ReplicaId{static_cast<std::int32_t>(replicas[giver])},
             ReplicaId{static_cast<std::int32_t>(replicas[taker])}},
            now_ns);
    }
  }
}

// Returns the first request, in the order of Scheduler::all_decoding(), that should move.
std::optional<RequestId> LiveMigrations::to_give(std::size_t giver, std::size_t taker) const {
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

bool LiveMigrations::migrates(ReplicaId replica) const {
  const auto concerns = [replica](const auto& one) {
    return one.from == replica || one.to == replica;
  };
  return std::any_of(running_.begin(), running_.end(),
                     [&](const auto& one) { return concerns(one.second); }) ||
         std::any_of(queued_.begin(), queued_.end(), concerns);
}

Migrations LiveMigrations::listed() const {
  std::map<std::pair<ReplicaId, ReplicaId>, MigratingRequests> all;
  const auto between = [&all](ReplicaId from, ReplicaId to) -> MigratingRequests& {
    return all.try_emplace({from, to}, MigratingRequests{.from = from, .to = to}).first->second;
  };
  for (const auto& [id, migration] : running_) {
    ++between(migration.from, migration.to).moving;
  }
  for (const ToMigrate& next : queued_) {
    ++between(next.from, next.to).queued;
  }
  Migrations some;
  for (const auto& [replicas, requests] : all) {
    some.push_back(requests);
  }
  return some;
}

std::shared_ptr<const Migrations> LiveMigrations::changed() {
  Migrations now = listed();
  if (now == told_) {
    return nullptr;
  }
  told_ = now;
  return std::make_shared<const Migrations>(std::move(now));
}

// Does what a migration asks for, and forgets it once it has ended.
void LiveMigrations::follow(CopyId id, std::optional<std::vector<BlockMove>> blocks) {
  const Migration& migration = running_.at(id);
  if (blocks) {
    exchange_->copy(id, migration.from, migration.to, *std::move(blocks));
  }
  if (!migration.steps.ended()) {
    return;
  }
  if (migration.steps.adopted()) {
    moved_.emplace_back(migration.steps.request(), migration.to);
  }
  running_.erase(id);
}

}  // namespace protean
