// Requests that no replica can hold: they wait for a group that can (AMOEBA section 3.3).

#include <algorithm>
#include <utility>

#include "fleet/fleet.h"

namespace protean {
namespace {

// Attempts to form a group for a held request. GroupAttempts pauses 1, 2 and 4 s between them.
constexpr int kMostAttempts = 4;

}  // namespace

void Fleet::keep_waiting(Arrival& arrival, std::optional<ReplicaId> at, TimeNs now_ns) {
  OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
  batch.outputs.emplace_back(Accepted{arrival.request.id});
  held_.push_back({.request = std::move(arrival.request), .arrived_ns = now_ns, .at = at});
  sink_.emit(std::move(batch));
}

void Fleet::end_held(std::size_t index, FinishReason reason, TimeNs now_ns) {
  const HeldRequest held = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  Finished finished = held.ended(reason, now_ns);
  if (reason == FinishReason::kFailed) {
    bool some_serve = false;
    for (std::size_t i = 0; i < stations_.size(); ++i) {
      some_serve = some_serve || in_service(i);
    }
    finished.may_retry = true;
    finished.failure = fmt::format(
        "{}{}: send it again later",
        held.moved ? "the request's replica has failed, and no other can go on with it"
        : some_serve && stations_.size() == 1
            ? "the configuration in which the model is served now cannot hold the request"
        : some_serve ? "the request needs a group of replicas, and none could be formed"
                     : "the replicas that were to serve the request have failed",
        !held.refusal.empty()       ? fmt::format(" ({})", held.refusal)
        : held.failed_attempts == 0 ? ""
                                    : fmt::format(" in {} attempts (the latest: {})",
                                                  held.failed_attempts, held.latest_failure));
  }
  OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
  batch.outputs.emplace_back(std::move(finished));
  sink_.emit(std::move(batch));
}

// Gives a held request to a replica or group that can hold it.
Fleet::HandOver Fleet::hand_over(HeldRequest& held, TimeNs now_ns) {
  const GroupScaling::Place place = scaling_.place_for(held, now_ns);
  if (!place.replica) {
    return place.too_late ? HandOver::kTooLate : HandOver::kTooLong;
  }
  owner_.emplace(held.asks().id, *place.replica);
  if (held.moved) {
    at(*place.replica).adopt(*std::move(held.moved), {}, now_ns);
  } else {
    at(*place.replica).begin_request(std::move(held.request), held.arrived_ns, now_ns);
  }
  return HandOver::kDone;
}

// Counts an attempt to form a group for held requests that failed.
void Fleet::count_attempt(const Grouping::Failure& failure) {
  bool tried = false;
  for (HeldRequest& held : held_) {
    const bool queues = scaling_.queues_behind(held);
    const bool behind = tried && queues;  // it waits behind the one that was tried
    if (!behind && attempts_.concerns(failure, held.at)) {
      ++held.failed_attempts;
      held.latest_failure = failure.why;
    }
    tried = tried || queues;
  }
}

// The groups that were asked for held requests may have to form again, for other reasons than that
// they cannot hold them.
void Fleet::forget_formed() {
  for (HeldRequest& held : held_) {
    held.asked_for.clear();
  }
}

void Fleet::count_failures(TimeNs now_ns) {
  for (const Grouping::Failure& failure : grouping_.take_failures()) {
    forget_formed();
    attempts_.failed(now_ns);
    if (attempts_.counts(failure)) {
      count_attempt(failure);
    }
  }
  attempts_.forget_ended(grouping_);
}

// Hands held requests over, and forms a group for the first one that needs one, unless all wait for
// other devices.
void Fleet::serve_held(TimeNs now_ns) {
  bool look_again = true;
  while (look_again) {
    const auto too_long = hand_over_held(now_ns);
    look_again = too_long && !succession_.is_awaited() && attempts_.may_ask(now_ns) &&
                 form_group(*too_long, now_ns);
  }
}

// Hands held requests over, and ends those whose time is over or that have waited in vain. Returns
// the first one that no replica can hold.
std::optional<std::size_t> Fleet::hand_over_held(TimeNs now_ns) {
  std::optional<std::size_t> too_long;
  for (std::size_t i = 0; i < held_.size();) {
    const TimeNs expires_ns = held_[i].expires_ns();
    const bool late = expires_ns >= 0 && expires_ns <= now_ns;
    const bool ends = late || !held_[i].refusal.empty();
    const bool behind = too_long && scaling_.queues_behind(held_[i]);
    const HandOver handed = ends     ? HandOver::kTooLate
                            : behind ? HandOver::kTooLong
                                     : hand_over(held_[i], now_ns);
    if (handed == HandOver::kDone) {
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (ends || held_[i].failed_attempts >= kMostAttempts) {
      end_held(i, late ? FinishReason::kTimeout : FinishReason::kFailed, now_ns);
    } else {
      too_long = handed == HandOver::kTooLong ? too_long.value_or(i) : too_long;
      ++i;
    }
  }
  return too_long;
}

// Asks for a group that can hold a held request, or takes back an order to part one. If there can
// be none, ends the request, unless replicas that have dropped layers will be alone again. Returns
// true if held requests should be looked at again now.
bool Fleet::form_group(std::size_t index, TimeNs now_ns) {
  const HeldRequest& held = held_[index];
  if (const auto parting = scaling_.parting_for(held)) {
    return ask_for_held(index, scaling_.one_of(*parting), now_ns).ok() && !grouping_.busy();
  }
  if (grouping_.busy()) {
    return false;
  }
  const bool at_rest = scaling_.forms_at_rest();
  const auto homes = scaling_.homes_for(held);
  Status begun;
  if (homes) {
    begun = ask_for_held(index, scaling_.one_of(*homes), now_ns);
    if (begun.ok()) {
      return !grouping_.busy();
    }
  }
  if (!at_rest || !attempts_.may_ask(now_ns) || (!homes && scaling_.layers_return())) {
    return false;
  }
  held_[index].refusal = begun.ok() ? std::string() : begun.error().message;
  end_held(index, FinishReason::kFailed, now_ns);
  return true;
}

// Asks for a group for a held request. If the same was asked for before, it formed and could not
// hold the request: that is an attempt that failed. Any other group, a larger one too, is a new
// wish.
Status Fleet::ask_for_held(std::size_t index, const GroupWish& wish, TimeNs now_ns) {
  HeldRequest& held = held_[index];
  if (std::ranges::find(held.asked_for, wish.groups.front()) != held.asked_for.end()) {
    forget_formed();
    ++held.failed_attempts;
    held.latest_failure = "the group formed, and could not hold it";
    attempts_.failed(now_ns);
    return make_error(ErrorCode::kUnavailable, "{}", held.latest_failure);
  }
  Status begun = ask(wish,
                     fmt::format("request {} needs {} KV blocks", held.asks().id.value,
                                 scaling_.blocks_needed(held)),
                     &held, now_ns);
  if (begun.ok()) {
    held.asked_for.push_back(wish.groups.front());
  }
  return begun;
}

// Asks for groups that a policy wants, and remembers one that forms and the held request, if any,
// for which it does. Fails if they cannot be had.
Status Fleet::ask(const GroupWish& wish, const std::string& reason, const HeldRequest* held,
                  TimeNs now_ns) {
  const auto changes = grouping_.want(wish, reason, false, now_ns);
  if (changes.ok() && wish.groups.size() == 1) {
    formed_.add(wish.groups.front(), {.since_ns = now_ns, .for_long = held != nullptr});
  }
  if (changes.ok() && held != nullptr) {
    attempts_.asked(wish.groups.front(), held->at);
  }
  count_failures(now_ns);
  return changes.ok() ? Status() : changes.error();
}

// Parts a group that was formed for long requests once they have ended.
void Fleet::scale_down(TimeNs now_ns) {
  if (const auto wish = scaling_.to_part()) {
    (void)grouping_.want(*wish, "long requests have ended and half of the KV cache is free", false,
                         now_ns);
  }
}

}  // namespace protean
