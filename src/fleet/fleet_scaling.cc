// Requests that no replica can hold: they wait for a group that can (AMOEBA section 3.3).

#include <algorithm>
#include <bit>
#include <utility>

#include "control/plan_regroup.h"
#include "fleet/fleet.h"

namespace protean {
namespace {

constexpr int kMostAttempts = 4;  // to form a group for a held request

}  // namespace

std::vector<std::int64_t> Fleet::group_blocks(const GroupConfig& config, std::size_t replicas) {
  std::vector<std::int64_t> blocks = {config.form.kv.blocks};
  const auto limit = [&] {
    const std::size_t power = blocks.size() - 1;
    if (power < config.longest_tokens.size()) {
      blocks.back() = std::min(blocks.back(), ceil_div<std::int64_t>(config.longest_tokens[power],
                                                                     config.form.kv.block_tokens));
    }
  };
  limit();
  if (config.devices == nullptr || config.scale == ScalePolicy::kOff) {
    return blocks;
  }
  for (std::size_t count = 2; count <= replicas; count *= 2) {
    const Result<Form> wide =
        divided_form(config.form, static_cast<int>(count), divides_by(config.scale));
    if (!wide.ok()) {
      break;
    }
    blocks.push_back(most_kv_blocks(config, *wide));
    limit();
  }
  return blocks;
}

// The last token is never fed back, so it needs no KV.
std::int64_t Fleet::blocks_needed(std::int64_t prompt, std::int64_t max_tokens) const {
  const std::int64_t tokens = std::max(prompt, prompt + max_tokens - 1);
  return ceil_div(tokens, std::int64_t{stations_.front().engine->block_tokens()});
}

std::int64_t Fleet::blocks_needed(const HeldRequest& held) const {
  return blocks_needed(held.prompt_tokens(), held.asks().max_tokens);
}

ScaleCandidate Fleet::candidate_of(std::size_t index) const {
  const ReplicaId replica{static_cast<std::int32_t>(index)};
  const bool waits = grouping_.waits_to_part(replica);
  const bool grouped = waits || grouping_.is_group(replica);
  const std::size_t replicas =
      waits ? grouping_.changing(replica).size() : grouping_.replicas_of(replica).size();
  const Observation& load = seen_[index];
  const std::size_t power = std::bit_width(replicas) - 1;
  const GroupBy by = divides_by(grouping_.config().scale);
  const std::size_t home = by == GroupBy::kLayers ? 0 : power - 1;  // the power of each home
  const auto formed = formed_.find(std::pair(replica, replicas));
  std::int64_t home_blocks = power > 0 && power <= blocks_of_.size() ? blocks_of_[home] : 0;
  if (grouped) {
    home_blocks = std::min(home_blocks, grouping_.group(replica).home.kv.blocks);
  }
  return {.replica = replica,
          .replicas = static_cast<int>(replicas),
          .requests = load.running + load.waiting,
          .formed_for_long = grouped && formed != formed_.end() && formed->second.for_long &&
                             grouping_.group(replica).by == by,
          .holds_long =
              power > 0 && power <= blocks_of_.size() && at(replica).largest_need() > home_blocks,
          .kv_used_share = static_cast<double>(load.kv_blocks_used) /
                           static_cast<double>(std::max<std::int64_t>(1, load.kv_blocks))};
}

bool Fleet::serves_by_layers(std::size_t index) const {
  const ReplicaId replica{static_cast<std::int32_t>(index)};
  return grouping_.is_group(replica) && grouping_.by(replica) == GroupBy::kLayers;
}

// Returns true if the policy lets a group wait for its end, or for room in its replicas.
bool Fleet::closes(std::size_t index) const {
  return !formed_.empty() && grouping_.config().scale != ScalePolicy::kJoint &&
         is_closing(candidate_of(index));
}

// Groups that wait for their end get no request that another replica takes.
void Fleet::pass_over_closing() {
  const auto closing = [this](std::size_t i) { return closes(candidates_.replicas[i]); };
  const auto takes = [this](std::size_t i) { return !candidates_.views[i].expected.refusal; };
  bool others = false;
  for (std::size_t i = 0; i < candidates_.views.size(); ++i) {
    others = others || (takes(i) && !closing(i));
  }
  for (std::size_t i = 0; others && i < candidates_.views.size(); ++i) {
    if (closing(i)) {
      candidates_.views[i].expected.refusal =
          make_error(ErrorCode::kUnavailable, "the group is about to part");
    }
  }
}

// A request that needs a group goes to the widest one that takes it (AMOEBA section 3.3).
void Fleet::pass_over_narrow() {
  const auto replicas = [this](std::size_t i) {
    return candidate_of(candidates_.replicas[i]).replicas;
  };
  int widest = 0;
  for (std::size_t i = 0; i < candidates_.views.size(); ++i) {
    widest = candidates_.views[i].expected.refusal ? widest : std::max(widest, replicas(i));
  }
  for (std::size_t i = 0; i < candidates_.views.size(); ++i) {
    ReplicaView& view = candidates_.views[i];
    if (!view.expected.refusal && replicas(i) < widest) {
      view.expected.refusal = make_error(ErrorCode::kUnavailable, "a wider group takes it");
    }
  }
}

// Returns the most tokens that a request of any group may have. KV is not considered.
int Fleet::longest_tokens() const {
  const std::vector<int>& longest = grouping_.config().longest_tokens;
  return longest.empty() ? stations_.front().engine->limits().max_model_len : longest.back();
}

namespace {

bool too_long(const ReplicaView& view) {
  return view.expected.refusal && view.expected.refusal->code != ErrorCode::kExhausted;
}

}  // namespace

// Returns true if a group could hold the request.
bool Fleet::could_grow_for(const Request& request) const {
  const std::int64_t tokens = static_cast<std::int64_t>(request.prompt.size()) + request.max_tokens;
  return tokens <= longest_tokens() &&
         blocks_needed(std::ssize(request.prompt), request.max_tokens) <= blocks_of_.back();
}

// Returns true if the scale policy lets a request that needs so many blocks wait behind another
// held one. Groups by layers do not grow: those that a stream of long requests keeps in use would
// never part for a longer request.
bool Fleet::queues_behind(std::int64_t blocks) const {
  return grouping_.config().scale == ScalePolicy::kLayers && blocks > blocks_of_.front();
}

// Accepts a request that no replica can hold now and a group could, or that waits behind another.
// Returns false if no group could hold it, or a replica is to take it.
bool Fleet::hold(Arrival& arrival, TimeNs now_ns) {
  const Request& request = arrival.request;
  const bool behind = !held_.empty() &&
                      queues_behind(blocks_needed(std::ssize(request.prompt), request.max_tokens));
  if ((!behind && !std::all_of(candidates_.views.begin(), candidates_.views.end(), too_long)) ||
      !could_grow_for(request)) {
    return false;
  }
  keep_waiting(arrival, std::nullopt, now_ns);
  return true;
}

// Lets candidates that are too small for a request count as if they could hold it, and returns
// them. Nothing if no group could hold it.
std::vector<std::size_t> Fleet::overlook_length(const Request& request) {
  std::vector<std::size_t> small;
  for (std::size_t i = 0; i < candidates_.views.size() && could_grow_for(request); ++i) {
    const bool grows = !serves_by_layers(candidates_.replicas[i]) || layers_return();
    if (grows && too_long(candidates_.views[i])) {
      candidates_.views[i].expected.refusal.reset();
      small.push_back(i);
    }
  }
  return small;
}

void Fleet::keep_waiting(Arrival& arrival, std::optional<ReplicaId> at, TimeNs now_ns) {
  OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
  batch.outputs.emplace_back(Accepted{arrival.request.id});
  held_.push_back({.request = std::move(arrival.request), .arrived_ns = now_ns, .at = at});
  sink_.emit(std::move(batch));
}

void Fleet::end_held(std::size_t index, FinishReason reason, TimeNs now_ns) {
  const HeldRequest held = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  Finished finished{.request = held.asks().id, .reason = reason};
  finished.usage.prompt_tokens = static_cast<int>(held.prompt_tokens());
  finished.times = {.arrived_ns = held.arrived_ns};
  if (held.moved) {
    finished.usage = held.moved->sequence->usage;
    finished.usage.output_at = held.moved->live.drawn_before;
    finished.times = held.moved->live.times;
  }
  finished.times.finished_ns = now_ns;
  if (reason == FinishReason::kFailed) {
    bool some_serve = false;
    for (std::size_t i = 0; i < stations_.size(); ++i) {
      some_serve = some_serve || in_service(i);
    }
    finished.failure =
        fmt::format("{}{}: send it again later",
                    held.moved ? "the request's replica has failed, and no other can go on with it"
                    : some_serve ? "the request needs a group of replicas, and none could be formed"
                                 : "the replicas that were to serve the request have failed",
                    !held.refusal.empty() ? fmt::format(" ({})", held.refusal)
                    : held.failed_attempts == 0
                        ? ""
                        : fmt::format(" in {} attempts (the latest: {})", held.failed_attempts,
                                      grouping_.failures().latest));
  }
  OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
  batch.outputs.emplace_back(std::move(finished));
  sink_.emit(std::move(batch));
}

// Gives a held request to the widest group that can hold it, among equals to the least loaded one.
Fleet::HandOver Fleet::hand_over(HeldRequest& held, TimeNs now_ns) {
  std::optional<ScaleCandidate> best;
  bool too_late = false;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (!in_service(i) || grouping_.changes(replica)) {
      continue;
    }
    const std::vector<ReplicaId> replicas = grouping_.replicas_of(replica);
    if (held.at && std::find(replicas.begin(), replicas.end(), *held.at) == replicas.end()) {
      continue;
    }
    const Prospect expected = held.moved ? at(replica).prospect(*held.moved->sequence)
                                         : at(replica).prospect(held.request, now_ns);
    if (const auto& refusal = expected.refusal) {
      too_late = too_late || refusal->code == ErrorCode::kExhausted;
      continue;
    }
    const ScaleCandidate candidate = candidate_of(i);
    if (!best || std::pair(-candidate.replicas, candidate.requests) <
                     std::pair(-best->replicas, best->requests)) {
      best = candidate;
    }
  }
  if (!best) {
    return too_late ? HandOver::kTooLate : HandOver::kTooLong;
  }
  owner_.emplace(held.asks().id, best->replica);
  if (held.moved) {
    at(best->replica).adopt(*std::move(held.moved), {}, now_ns);
  } else {
    at(best->replica).begin_request(std::move(held.request), held.arrived_ns, now_ns);
  }
  return HandOver::kDone;
}

// After a failure no policy asks for a group for a while, which is longer after each in a row. What
// fails meanwhile was asked for before, so it is no further attempt.
void Fleet::count_failures(TimeNs now_ns) {
  constexpr int kMostDoublings = 5;
  if (grouping_.failures().count == attempts_.failures_seen) {
    return;
  }
  attempts_.failures_seen = grouping_.failures().count;
  if (now_ns < attempts_.not_before_ns) {
    return;
  }
  const TimeNs since_pause_ns = now_ns - attempts_.not_before_ns;
  int& in_a_row = attempts_.failed_in_a_row;
  in_a_row = since_pause_ns > (kNsPerS << kMostDoublings) ? 0 : in_a_row;
  attempts_.not_before_ns = now_ns + (kNsPerS << std::min(in_a_row++, kMostDoublings));
  bool tried = false;
  for (HeldRequest& held : held_) {
    const bool queues = queues_behind(blocks_needed(held));
    held.failed_attempts += tried && queues ? 0 : 1;  // it waits behind the one that was tried
    tried = tried || queues;
  }
}

// Hands held requests over, and forms a group for the first one that needs one.
void Fleet::serve_held(TimeNs now_ns) {
  bool look_again = true;
  while (look_again) {
    const auto too_long = hand_over_held(now_ns);
    look_again = too_long && now_ns >= attempts_.not_before_ns && form_group(*too_long, now_ns);
  }
}

// Hands held requests over, and ends those whose time is over or that have waited in vain. Returns
// the first one that no replica can hold.
std::optional<std::size_t> Fleet::hand_over_held(TimeNs now_ns) {
  std::optional<std::size_t> too_long;
  for (std::size_t i = 0; i < held_.size();) {
    const TimeNs expires_ns = held_[i].expires_ns();
    const bool late = expires_ns >= 0 && expires_ns <= now_ns;
    const bool behind = too_long && queues_behind(blocks_needed(held_[i]));
    const HandOver handed = late     ? HandOver::kTooLate
                            : behind ? HandOver::kTooLong
                                     : hand_over(held_[i], now_ns);
    if (handed == HandOver::kDone) {
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (late || held_[i].failed_attempts >= kMostAttempts) {
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
  const std::int64_t blocks = blocks_needed(held);
  const std::string reason =
      fmt::format("request {} needs {} KV blocks", held.asks().id.value, blocks);
  const GroupBy by = divides_by(grouping_.config().scale);
  const auto parting = grouping_.parting(by);
  if (parting && (by == GroupBy::kShards || homes_hold(parting->size(), blocks))) {
    return scale(*parting, reason, now_ns).ok() && !grouping_.busy();
  }
  if (grouping_.busy()) {
    return false;
  }
  bool at_rest = true;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    at_rest = at_rest && (!in_service(i) || stations_[i].engine->form_at_rest());
  }
  const auto homes = homes_for(held_[index]);
  Status begun;
  if (homes) {
    begun = scale(*homes, reason, now_ns);
    if (begun.ok()) {
      return !grouping_.busy();
    }
  }
  if (!at_rest || (!homes && layers_return())) {
    return false;
  }
  held_[index].refusal = begun.ok() ? std::string() : begun.error().message;
  end_held(index, FinishReason::kFailed, now_ns);
  return true;
}

// Returns true if there are groups by layers that are sure to part: those that the scale policy
// formed, and all of them with `--drop paper`.
bool Fleet::layers_return() const {
  const GroupConfig& config = grouping_.config();
  const bool restores = config.drop == DropPolicy::kPaper && config.restores;
  bool some = false;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    some = some ||
           (in_service(i) && serves_by_layers(i) && (restores || candidate_of(i).formed_for_long));
  }
  return some;
}

// Returns true if a group of so many replicas alone holds a request of so many blocks.
bool Fleet::homes_hold(std::size_t homes, std::int64_t blocks) const {
  const std::size_t power = std::bit_width(homes) - 1;
  return power < blocks_of_.size() && blocks_of_[power] >= blocks;
}

// Returns the candidates that are to become one next for a held request. Groups by layers stay as
// they are, because their devices do not join others.
std::optional<std::vector<ReplicaId>> Fleet::homes_for(const HeldRequest& held) const {
  std::vector<ScaleCandidate> candidates;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (in_service(i) && !serves_by_layers(i)) {
      candidates.push_back(candidate_of(i));
    }
  }
  const std::int64_t blocks = blocks_needed(held);
  if (grouping_.config().scale == ScalePolicy::kLayers) {
    return choose_scale_layers(candidates, blocks, blocks_of_);
  }
  return held.at ? choose_neighbours(candidates, *held.at)
                 : choose_scale_up(candidates, blocks, blocks_of_);
}

// Asks for one group of several. Fails if it cannot be had.
Status Fleet::scale(const std::vector<ReplicaId>& homes, const std::string& reason, TimeNs now_ns) {
  GroupWish wish{.groups = {{}}, .by = divides_by(grouping_.config().scale)};
  for (const ReplicaId home : homes) {
    const std::vector<ReplicaId> replicas = grouping_.replicas_of(home);
    wish.groups.front().insert(wish.groups.front().end(), replicas.begin(), replicas.end());
  }
  const auto changes = grouping_.want(wish, reason, false, now_ns);
  if (changes.ok()) {
    remember_group(wish.groups.front(), {.since_ns = now_ns, .for_long = true});
  }
  count_failures(now_ns);
  return changes.ok() ? Status() : changes.error();
}

void Fleet::remember_group(const std::vector<ReplicaId>& replicas, const Formed& formed) {
  const ReplicaId first = *std::min_element(replicas.begin(), replicas.end());
  formed_[{first, replicas.size()}] = formed;
}

// Groups that an operator names are the operator's.
void Fleet::forget_groups(const GroupWish& wish) {
  for (const std::vector<ReplicaId>& replicas : wish.groups) {
    for (const ReplicaId replica : replicas) {
      std::erase_if(formed_, [&](const auto& one) { return one.first.first == replica; });
    }
  }
}

void Fleet::forget_parted() {
  std::erase_if(formed_, [this](const auto& one) {
    const auto& [first, replicas] = one.first;
    return !grouping_.is_group(first) || grouping_.replicas_of(first).size() < replicas;
  });
}

// Parts a group that was formed for long requests once they have ended, if enough of its KV is
// free.
void Fleet::scale_down(TimeNs now_ns) {
  for (const auto& [group, formed] : formed_) {
    const auto& [replica, replicas] = group;
    const std::size_t i = index_of(replica);
    if (in_service(i) && grouping_.replicas_of(replica).size() == replicas &&
        may_scale_down(candidate_of(i))) {
      (void)grouping_.want({.groups = grouping_.homes_of(replica)},
                           "long requests have ended and half of the KV cache is free", false,
                           now_ns);
      return;
    }
  }
}

}  // namespace protean
