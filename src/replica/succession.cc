// How a worker takes the place of the one that serves (Replicas::succeed), and how requests come
// from replicas that have ended.

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/overloaded.h"
#include "device/cpu/low_priority.h"
#include "replica/replica.h"

namespace protean {
namespace {

// Returns true for what comes through the gate of workers.
bool comes_from_workers(const Event& event) {
  return std::visit(
      Overloaded{[](const StepDone&) { return true; }, [](const MorphReady&) { return true; },
                 [](const MorphDone&) { return true; }, [](const DevicesFailed&) { return true; },
                 [](const BlocksCopied&) { return true; }, [](const WantQuota&) { return true; },
                 [](const VariantsPacked&) { return true; }, [](const Arrival&) { return false; },
                 [](const Cancel&) { return false; }, [](const WantForm&) { return false; },
                 [](const WantMigration&) { return false; },
                 [](const WantGroups&) { return false; }, [](const Tick&) { return false; }},
      event.what);
}

// Returns true for what is told to an engine, of which a worker that does not serve has none.
bool concerns_engine(const Event& event) {
  return std::holds_alternative<WantQuota>(event.what) ||
         std::holds_alternative<VariantsPacked>(event.what);
}

}  // namespace

Succeeded Replicas::succeed(LoadedWorkers by) {
  std::future<HandOver::Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    HandOver& asked = asked_.hand_over.emplace();
    asked.by = std::move(by);
    ended = asked.ended.get_future();
  }
  inbox_.push({steady_now_ns(), Tick{}, {}});
  HandOver::Ended as = ended.get();
  std::optional<LoadedWorkers> left(std::move(as.left));
  cpu::run_at_low_priority([&] { left.reset(); });  // while steps of the others go on
  return as.how;
}

void Replicas::await_successor(bool awaits) {
  {
    const std::lock_guard lock(mutex_);
    asked_.awaits_successor = awaits;
  }
  inbox_.push({steady_now_ns(), Tick{}, {}});
}

void Replicas::take_in(std::vector<HeldRequest> requests) {
  {
    const std::lock_guard lock(mutex_);
    std::move(requests.begin(), requests.end(), std::back_inserter(asked_.requests));
  }
  inbox_.push({steady_now_ns(), Tick{}, {}});
}

// Events of workers are told apart by the numbers of the workers, since those of former ones may
// still be in the inbox.
void Replicas::handle(Event event) {
  if (comes_from_workers(event)) {
    const std::int32_t number = event.replica.value;
    const std::int32_t replica = number - serving_.first;
    if (succession_ && !succession_->has_switched && number == succession_->by.first) {
      if (concerns_engine(event)) {
        succession_->kept.push_back(std::move(event));
        return;
      }
      event.replica = successor();
    } else if (replica >= 0 && replica < replicas_) {
      event.replica = ReplicaId{replica};
    } else {
      return;
    }
  }
  fleet_.handle(std::move(event));
  look_at_succession();
}

void Replicas::look_at_succession() {
  if (const std::optional<Status> how = fleet_.take_succeeded()) {
    end_succession(*how);
  }
}

// Does what other threads have asked for. Each has sent an event afterwards.
void Replicas::take_asked() {
  std::optional<HandOver> hand_over;
  std::vector<HeldRequest> requests;
  {
    const std::lock_guard lock(mutex_);
    hand_over = std::exchange(asked_.hand_over, std::nullopt);
    requests = std::exchange(asked_.requests, {});
    fleet_.await_successor(asked_.awaits_successor);
  }
  if (!requests.empty()) {
    fleet_.hold(std::move(requests), steady_now_ns());
  }
  if (hand_over) {
    succession_ = std::move(hand_over);
    begin_succession();
  }
}

void Replicas::begin_succession() {
  LoadedWorkers& by = succession_->by;
  by.first = numbers_++;
  by.workers->tell(inbox_, by.first);
  const Status begun =
      fleet_.succeed(by.workers->members(by.engine, by.form).front(), successor(), steady_now_ns());
  if (begun.ok()) {
    look_at_succession();
  } else {
    end_succession(begun);
  }
}

void Replicas::succeeded() {
  std::swap(serving_, succession_->by);
  succession_->has_switched = true;
}

void Replicas::end_succession(const Status& how) {
  HandOver ended = *std::move(succession_);
  succession_.reset();
  check(how.ok() == ended.has_switched, "the fleet says when it switches");
  for (Event& event : ended.kept) {
    handle(std::move(event));
  }
  LoadedWorkers left = std::move(ended.by);
  if (left.workers->have_failed()) {
    if (how.ok()) {
      if (left.memory != nullptr) {
        left.memory->fail();
      }
      failed_.push_back(std::exchange(left, {}));
    } else {
      serving_.workers->stay();
    }
  }
  ended.ended.set_value({{how, fleet_.take_failed()}, std::move(left)});
}

// Returns the workers that a fleet knows by this replica's id.
LoadedWorkers& Replicas::holding(ReplicaId replica) {
  return replica == successor() && succession_ ? succession_->by : serving_;
}

void Replicas::copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) {
  Workers& source = *holding(from).workers;
  Workers& target = *holding(to).workers;
  const auto own = [&](ReplicaId replica) {
    return replica == successor() ? ReplicaId{0} : replica;
  };
  target.copy(id, source, own(from), own(to), blocks);
}

}  // namespace protean
