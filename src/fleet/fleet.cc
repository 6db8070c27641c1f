#include "fleet/fleet.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"

namespace protean {

Fleet::Fleet(RouterPolicy router, const std::vector<Member>& members, TokenSink& sink,
             KvExchange* exchange)
    : router_(router),
      sink_(sink),
      exchange_(exchange),
      seen_(members.size()),
      candidates_(members.size()) {
  check(!members.empty(), "a fleet has a replica");
  TokenSink& outputs = *this;
  for (const Member& member : members) {
    EngineConfig config = member.engine;
    config.replica = ReplicaId{static_cast<std::int32_t>(engines_.size())};
    engines_.push_back(std::make_unique<Engine>(config, *member.executor, outputs));
    seen_[engines_.size() - 1] = engines_.back()->observe();
  }
}

void Fleet::begin(TimeNs now_ns) {
  for (const auto& engine : engines_) {
    engine->handle({now_ns, Tick{}});
  }
}

void Fleet::handle(Event event) {
  const TimeNs now_ns = event.at_ns;
  const ReplicaId replica = event.replica;
  const auto reported = [&](auto&) { at(replica).handle(std::move(event)); };
  std::visit(
      Overloaded{[&](Arrival& arrival) { on(arrival, now_ns); },
                 [&](const Cancel& cancel) { on(cancel, now_ns); },
                 [&](const BlocksCopied& copied) { on(copied, now_ns); },
                 [&](const WantMigration& want) { on(want, replica, now_ns); },
                 [&](const Tick&) { tick(now_ns); }, [&](StepDone& done) { reported(done); },
                 [&](MorphReady& ready) { reported(ready); },
                 [&](MorphDone& done) { reported(done); }, [&](WantForm& want) { reported(want); }},
      event.what);
  advance_migrations(now_ns);
  spread_queue(now_ns);
}

void Fleet::on(Arrival& arrival, TimeNs now_ns) {
  std::size_t chosen = 0;
  if (engines_.size() > 1) {
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      candidates_[i] = {seen_[i], engines_[i]->prospect(arrival.request, now_ns)};
    }
    chosen = choose_replica(router_, candidates_, turn_);
    turn_ = (chosen + 1) % engines_.size();
  }
  const ReplicaId replica{static_cast<std::int32_t>(chosen)};
  owner_.emplace(arrival.request.id, replica);
  engines_[chosen]->handle({now_ns, std::move(arrival), replica});
}

void Fleet::on(const Cancel& cancel, TimeNs now_ns) {
  const auto owner = owner_.find(cancel.request);
  if (owner != owner_.end()) {
    at(owner->second).handle({now_ns, cancel});
  }
}

void Fleet::on(const BlocksCopied& copied, TimeNs now_ns) {
  follow(copied.id, migrations_.at(copied.id).steps.copied(now_ns));
}

void Fleet::on(const WantMigration& want, ReplicaId from, TimeNs now_ns) {
  OutputBatch batch{.at_ns = now_ns, .replica = from};
  batch.outputs.emplace_back(
      MigrationAnswered{want.wish_id, migrate(from, want.to, want.requests, now_ns)});
  batch.observation = at(from).observe();
  sink_.emit(std::move(batch));
}

Result<int> Fleet::migrate(ReplicaId from, ReplicaId to, int requests, TimeNs now_ns) {
  if (exchange_ == nullptr || from == to) {
    return make_error(ErrorCode::kInvalidArgument,
                      "requests cannot move from replica {} to replica {}: name two replicas of a "
                      "server that has several",
                      from.value, to.value);
  }
  int begun = 0;
  for (const RequestId request : at(from).decoding()) {
    const bool moves = std::any_of(migrations_.begin(), migrations_.end(), [&](const auto& one) {
      return one.second.steps.request() == request;
    });
    if (moves || begun == requests) {
      continue;
    }
    const CopyId id{++last_copy_};
    Migration& migration =
        migrations_.try_emplace(id, Migration{from, to, {request, at(from), at(to)}}).first->second;
    auto blocks = migration.steps.begin(now_ns);
    begun += migration.steps.ended() ? 0 : 1;
    follow(id, std::move(blocks));
  }
  return begun;
}

// Lets the migrations go on whose request has left a step.
void Fleet::advance_migrations(TimeNs now_ns) {
  for (auto next = migrations_.begin(); next != migrations_.end();) {
    auto& [id, migration] = *next++;
    follow(id, migration.steps.source_advanced(now_ns));
  }
}

// Does what a migration asks for, and forgets it once it has ended.
void Fleet::follow(CopyId id, std::optional<std::vector<BlockMove>> blocks) {
  const Migration& migration = migrations_.at(id);
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
  migrations_.erase(id);
}

void Fleet::tick(TimeNs now_ns) {
  for (const auto& engine : engines_) {
    const auto deadline_ns = engine->next_deadline_ns();
    if (deadline_ns && *deadline_ns <= now_ns) {
      engine->handle({now_ns, Tick{}});
    }
  }
}

// Moves a request from the longest queue to the least loaded replica without a queue, if it has a
// place there at once and here it has none or a later first token. One event moves one request:
// each event that ends a step looks again.
void Fleet::spread_queue(TimeNs now_ns) {
  const auto longest =
      std::max_element(seen_.begin(), seen_.end(),
                       [](const auto& a, const auto& b) { return a.waiting < b.waiting; });
  const auto emptiest =
      std::min_element(seen_.begin(), seen_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.waiting, a.running) < std::pair(b.waiting, b.running);
      });
  if (longest->waiting == 0 || emptiest->waiting > 0) {
    return;
  }
  Engine& from = *engines_[static_cast<std::size_t>(longest - seen_.begin())];
  Engine& to = *engines_[static_cast<std::size_t>(emptiest - seen_.begin())];
  const Sequence* sequence = from.first_movable();
  if (sequence == nullptr) {
    return;
  }
  const Prospect here = from.prospect(*sequence);
  const Prospect there = to.prospect(*sequence);
  const bool sooner = here.before.without_place > 0 || there.first_token_ns < here.first_token_ns;
  if (there.refusal || there.before.without_place > 0 || !sooner) {
    return;
  }
  const RequestId request = sequence->asks.id;
  owner_[request] = ReplicaId{static_cast<std::int32_t>(emptiest - seen_.begin())};
  to.adopt(from.release(request, now_ns), {}, now_ns);
}

std::optional<TimeNs> Fleet::next_deadline_ns() const {
  std::optional<TimeNs> next_ns;
  for (const auto& engine : engines_) {
    const auto deadline_ns = engine->next_deadline_ns();
    if (deadline_ns) {
      next_ns = std::min(next_ns.value_or(*deadline_ns), *deadline_ns);
    }
  }
  return next_ns;
}

bool Fleet::idle() const {
  return std::all_of(engines_.begin(), engines_.end(),
                     [](const auto& engine) { return engine->idle(); });
}

void Fleet::emit(OutputBatch batch) {
  seen_[static_cast<std::size_t>(batch.replica.value)] = batch.observation;
  for (const Output& output : batch.outputs) {
    std::visit(Overloaded{[&](const Finished& finished) { owner_.erase(finished.request); },
                          [&](const Refused& refused) { owner_.erase(refused.request); },
                          [](const auto&) {}},
               output);
  }
  sink_.emit(std::move(batch));
}

}  // namespace protean
