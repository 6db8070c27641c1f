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
      seen_(members.size()),
      exchange_(exchange),
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
  const auto reported = [&](auto&) { at(event.replica).handle(std::move(event)); };
  std::visit(
      Overloaded{[&](Arrival& arrival) { on(arrival, now_ns); },
                 [&](Cancel& cancel) {
                   const auto owner = owner_.find(cancel.request);
                   if (owner != owner_.end()) {
                     at(owner->second).handle({now_ns, cancel});
                   }
                 },
                 [&](Tick&) { tick(now_ns); }, [&](StepDone& done) { reported(done); },
                 [&](MorphReady& ready) { reported(ready); },
                 [&](MorphDone& done) { reported(done); }, [&](WantForm& want) { reported(want); }},
      event.what);
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
