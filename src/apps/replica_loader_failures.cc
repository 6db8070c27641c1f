// How changes of models fail or are taken back, and how models leave devices that have failed.

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "apps/hand_over.h"
#include "apps/replica_loader.h"
#include "base/log.h"

namespace protean {

void ReplicaLoader::forget_replacement(std::size_t model) {
  give_short([this, model] { residents_[model].next.reset(); }, log_failure);
}

void ReplicaLoader::fail_to_replace(std::size_t model, const Error& error) {
  placements_.failed_to_move(model, steady_now_ns());
  if (std::exchange(residents_[model].awaits_place, false)) {
    fail_to_wake(model, error);
  }
  server_.not_replaced(model, error);
}

// Ends the requests that were accepted before the model's devices failed, and has the server end
// those that wait for it to wake.
void ReplicaLoader::fail_to_wake(std::size_t model, const Error& error) {
  Resident& resident = residents_[model];
  std::vector<Finished> ended;
  for (const HeldRequest& held : std::exchange(resident.held, {})) {
    ended.push_back(held.ended(FinishReason::kFailed, steady_now_ns()));
    ended.back().failure = fmt::format(
        "{}, and the model was not loaded again: {}",
        resident.failure.empty() ? "its device has failed" : resident.failure, error.message);
  }
  server_.woke(model, error, std::move(ended));
}

// If the devices of a model with an intent fail, its requests wait until it is placed anew.
void ReplicaLoader::await_successor(std::size_t model) {
  const Resident& resident = residents_[model];
  if (resident.replicas != nullptr) {
    const OpenModel& served = *resident.model;
    resident.replicas->await_successor(served.report != nullptr && !resident.leaves &&
                                       served.replica.sizing.replicas() == 1);
  }
}

void ReplicaLoader::leaves(std::size_t model) {
  give_short(
      [this, model] {
        residents_[model].leaves = true;
        await_successor(model);
      },
      log_failure);
}

void ReplicaLoader::lose(std::size_t model, const ReplicaFailure& failure) {
  give_short([this, model, failure] { lose_now(model, failure); },
             [this, model, failure](const Error& error) {
               log_failure(error);
               leave_devices(model, failure.why);
             });
}

// Notes that nothing is placed on the devices of a model that have failed, and returns what has
// failed. A model without an intent has no devices that others are placed on.
std::string ReplicaLoader::lose_devices(const OpenModel& model, const ReplicaFailure& failure) {
  if (model.report == nullptr) {
    return "a device " + failure.why;
  }
  const std::vector<int> devices =
      devices_that_failed(*model.report, model.replica.sizing.cpus, failure.devices);
  placements_.lose(devices);
  return fmt::format("device {} {}", fmt::join(devices, " or "), failure.why);
}

// Returns true if the model was placed on a device that has failed, before or since.
bool ReplicaLoader::uses_lost_devices(const OpenModel& model) const {
  return model.report != nullptr && placements_.uses_lost(*model.report);
}

// Plans once more for a wish, without the devices that have failed. A move fails instead, because
// it names its devices. If the model serves on a failed device, the move is dropped and planned
// like any wish.
void ReplicaLoader::plan_again(std::size_t model, IntentWish wish, const Error& why) {
  const std::shared_ptr<OpenModel>& served = residents_[model].model;  // null: it was removed
  if (wish.move && (served == nullptr || !uses_lost_devices(*served))) {
    fail_to_replace(model, why);
    return;
  }
  wish.move.reset();
  server_.changes(model, {.planned_again = true});
  replace_now(model, wish);
}

// If devices of the new configuration have failed, plans without them; else loads a second copy.
void ReplicaLoader::fail_to_hand_over(std::size_t model, Next next, const Succeeded& ended) {
  const Error& error = ended.how.error();
  if (!ended.failed) {
    serve_copy(model, std::move(next), error.message);
    return;
  }
  log::error("{}: {}, and takes no further models", name_of(next.copy),
             lose_devices(next.copy, *ended.failed));
  plan_again(model, std::move(next.wish), error);
}

// Keeps the model's requests. A device that hangs keeps its memory, which is no free memory any
// more.
void ReplicaLoader::lose_now(std::size_t model, const ReplicaFailure& failure) {
  const OpenModel& served = *residents_[model].model;
  std::string why = lose_devices(served, failure);
  log::error("{}: {}, and takes no further models: this one is placed anew", name_of(served), why);
  leave_devices(model, std::move(why));
}

// Unloads a model whose devices have failed. It may be called again if it threw.
void ReplicaLoader::leave_devices(std::size_t model, std::string why) {
  Resident& resident = residents_[model];
  resident.failure = std::move(why);
  resident.awaits_place = true;
  if (resident.replicas != nullptr) {
    std::ranges::move(resident.replicas->end(), std::back_inserter(resident.held));
  }
  unload_now(model);
}

Status ReplicaLoader::lost(const Resident& resident) {
  return make_error(ErrorCode::kUnavailable,
                    "{}: place the model on others with PUT /admin/intent, or start the server "
                    "again",
                    resident.failure);
}

// Plans with the devices that are left, and loads the model there. Its requests wait for that, and
// are computed again from their tokens: it sleeps, since nothing works where it was.
void ReplicaLoader::place_anew(std::size_t model, const IntentWish& wish) {
  const std::shared_ptr<OpenModel> before = residents_[model].model;
  if (before == nullptr) {
    return;
  }
  server_.changes(model, {.why = residents_[model].failure, .placed_anew = true});
  OpenOptions options = open_options(tell_change(model));
  if (wish.requests_wait) {  // a fingerprint gives others no turns, but knows whether they compute
    options.harvest.await_turn = [this] { return !jobs_.closed(); };
  }
  const std::int64_t own = memory_now(*before);
  auto opened = plan(std::move(options), model, [&](const OpenOptions& with, auto unclaimed) {
    return open_for_intent(*before, wish, with, unclaimed + own);
  });
  const Status possible =
      opened.ok() ? check_hand_over(*before, *opened, false) : Status(opened.error());
  if (!possible.ok()) {
    fail_to_replace(model, possible.error());
    return;
  }
  Resident& resident = residents_[model];
  if (resident.model == nullptr) {
    return;
  }
  if (!before->files->current()) {
    std::ranges::for_each(resident.held, &HeldRequest::weights_replaced);
  }
  server_.planned(model, opened->plan);
  opened->load_s = before->load_s;  // until it is loaded
  server_.succeeded(model, take_over(*before, *std::move(opened)));
  add_placement(model);
  resident.failure.clear();
  resident.awaits_place = false;  // from here on load_now() ends its requests if it fails
  load_now(model);
}

}  // namespace protean
