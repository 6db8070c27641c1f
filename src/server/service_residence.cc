// How a model that is not used gives its memory back, and comes back for the next request.

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "server/service.h"

namespace protean {
namespace {

// Between looks at whether a model that is to sleep at once is still in use.
constexpr TimeNs kSoonNs = kNsPerS / 20;

}  // namespace

bool Service::may_sleep() const {
  return residence() == Residence::kAwake && state_ == ServerState::kReady && outstanding() == 0 &&
         wishes_.empty();
}

bool Service::have_all_failed() const {
  const GroupsStatus* groups = fleet_.groups();
  return groups != nullptr && std::ssize(groups->failed) >= model_->replicas;
}

bool Service::out_of_service() const {
  const bool comes_back =
      residence() == Residence::kFallingAsleep || residence() == Residence::kWaking;
  return have_all_failed() && !comes_back;
}

const ReplicaFailure* Service::failure() const {
  return model_->replicas == 1 && have_all_failed() ? &fleet_.groups()->failed.front() : nullptr;
}

// The model has engines on devices that work, unless these have failed since they were loaded. A
// replica that joins no other tells of its groups only once it fails.
void Service::forget_failure() {
  if (failure() != nullptr && failure()->at_ns <= engines_.unloaded_ns()) {
    fleet_.groups(nullptr);
    metrics_.groups({});
  }
}

std::optional<TimeNs> Service::sleep_due_ns() const {
  const TimeNs stay_ns = engines_.stay_ns.value_or(limits_.sleep_idle_ns);
  if (stay_ns == kForeverNs || residence() != Residence::kAwake || state_ != ServerState::kReady) {
    return std::nullopt;
  }
  return may_sleep() ? engines_.used_ns() + stay_ns
                     : environment_.clock() + std::max(stay_ns, kSoonNs);
}

void Service::keep_loaded(TimeNs ns) {
  engines_.stay_ns = ns;
  on_stay_changed();
}

void Service::wake() {
  if (sleeps(residence())) {
    engines_.wake();
  }
}

void Service::fell_asleep() {
  if (const auto before = fleet_.replicas_wanted()) {  // what sleeps lacks no KV
    const ReplicasWanted now{before->serving, before->serving};
    fleet_.replicas_wanted(now);
    metrics_.replicas_wanted(now);
  }
  fleet_.migrations({});
  engines_.fell_asleep();
  show_waiting();  // the last batches of engines that were unloaded had none that wait
}

void Service::show_residence(Residence residence) {
  metrics_.residence(residence);
  show_state(now_ns());
  if (residence == Residence::kWaking) {
    on_wanted();
  }
}

// Shows the requests that wait for the model to wake as waiting in the first replica, which reports
// nothing before it is loaded.
void Service::show_waiting() {
  const ReplicaId first{0};
  Observation seen = fleet_.seen(first);
  seen.waiting = 0;
  if (residence() != Residence::kAwake) {
    seen.waiting = static_cast<int>(std::count_if(
        live_.begin(), live_.end(), [](const auto& entry) { return !entry.second.cancelled; }));
  }
  seen.step_tokens = 0;  // no step was computed
  metrics_.engine(first, seen);
  fleet_.engine(first, seen);
  feed_.engine(first, seen, now_ns());
}

void Service::forget_all() {
  live_.clear();
  pending_.clear();
  wishes_.clear();
}

// Returns what an intent, and then operators, have asked for of each replica that serves alone and
// is still in effect.
std::vector<std::pair<ReplicaId, FormWish>> Service::standing_wishes() const {
  std::vector<std::pair<ReplicaId, FormWish>> standing;
  if (engines_.rest) {
    standing.emplace_back(ReplicaId{0}, *engines_.rest);
  }
  for (const FleetReport::Holders& holders : fleet_.holders()) {
    const FormStatus& now = fleet_.form(holders.replicas.front());
    if (holders.replicas.size() > 1) {
      continue;
    }
    if (now.mode != model_->form.mode || now.floor != model_->form.floor) {
      standing.emplace_back(holders.replicas.front(),
                            FormWish{.mode = now.mode, .floor = now.floor});
    }
    if (now.pinned) {
      standing.emplace_back(holders.replicas.front(), FormWish{.layers = now.wanted.layer_precision,
                                                               .embeddings = now.wanted.embeddings,
                                                               .kv_blocks = now.wanted.kv.blocks});
    }
  }
  return standing;
}

void Service::rest_in(FormWish wish) {
  std::erase_if(engines_.standing, [](const auto& one) { return one.second.names_form(); });
  if (sleeps(residence())) {
    engines_.standing.insert(engines_.standing.begin(), {ReplicaId{0}, wish});
  }
  engines_.rest = std::move(wish);
}

void Service::fall_asleep() {
  check(may_sleep() || failure() != nullptr, "a model that is used does not sleep");
  engines_.standing = standing_wishes();
  engines_.fall_asleep();
}

void Service::woke(const Status& loaded, const std::vector<Finished>& ended) {
  if (loaded.ok()) {
    forget_failure();
    std::vector<Event> again;
    for (auto& [replica, wish] : std::exchange(engines_.standing, {})) {
      const auto [id, pending] = new_wish();
      pending->on_ready = [this, reply = pending.get()] {
        if (reply->reply->status != 202) {
          log::warning("{}: what was asked for before it slept is not possible now: {}",
                       model_->names.front(), error_message(*reply->reply));
        }
      };
      again.push_back({environment_.clock(), WantForm{id, std::move(wish)}, replica});
    }
    engines_.woke(std::move(again));
    show_waiting();
    return;
  }
  engines_.failed_to_wake();
  const Error error{ErrorCode::kUnavailable,
                    "the model sleeps and cannot be loaded: " + loaded.error().message};
  OutputBatch failed{.at_ns = now_ns(), .observation = fleet_.seen(ReplicaId{0})};
  failed.outputs.assign(ended.begin(), ended.end());
  for (const auto& [id, live] : live_) {  // those that have ended are gone by then
    failed.outputs.emplace_back(Refused{id, error});
  }
  deliver(failed);
  show_waiting();
  while (!wishes_.empty()) {
    answer_wish(wishes_.begin()->first, error);
  }
}

}  // namespace protean
