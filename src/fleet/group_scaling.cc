#include "fleet/group_scaling.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "control/plan_regroup.h"

namespace protean {
namespace {

std::vector<std::int64_t> blocks_of_groups(const GroupConfig& config, std::size_t replicas) {
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

bool too_long(const ReplicaView& view) {
  return view.expected.refusal && view.expected.refusal->code != ErrorCode::kExhausted;
}

}  // namespace

GroupScaling::GroupScaling(const Grouping& grouping, const std::vector<Station>& stations,
                           const std::vector<Observation>& seen, const FormedGroups& formed)
    : grouping_(grouping),
      stations_(stations),
      seen_(seen),
      formed_(formed),
      blocks_of_(blocks_of_groups(grouping.config(), stations.size())) {}

Engine& GroupScaling::at(ReplicaId replica) const {
  return *stations_.at(static_cast<std::size_t>(replica.value)).engine;
}

bool GroupScaling::in_service(std::size_t index) const {
  return grouping_.in_service(ReplicaId{static_cast<std::int32_t>(index)});
}

// The last token is never fed back, so it needs no KV.
std::int64_t GroupScaling::blocks_needed(std::int64_t prompt, std::int64_t max_tokens) const {
  const std::int64_t tokens = std::max(prompt, prompt + max_tokens - 1);
  return ceil_div(tokens, std::int64_t{stations_.front().engine->block_tokens()});
}

std::int64_t GroupScaling::blocks_needed(const Request& request) const {
  return blocks_needed(std::ssize(request.prompt), request.max_tokens);
}

std::int64_t GroupScaling::blocks_needed(const HeldRequest& held) const {
  return blocks_needed(held.prompt_tokens(), held.asks().max_tokens);
}

// Returns the most tokens that a request of any group may have. KV is not considered.
int GroupScaling::longest_tokens() const {
  const std::vector<int>& longest = grouping_.config().longest_tokens;
  return longest.empty() ? stations_.front().engine->limits().max_model_len : longest.back();
}

bool GroupScaling::could_grow_for(const Request& request) const {
  const std::int64_t tokens = static_cast<std::int64_t>(request.prompt.size()) + request.max_tokens;
  return tokens <= longest_tokens() && blocks_needed(request) <= blocks_of_.back();
}

std::optional<ReplicaId> GroupScaling::failed_but_needed(const Request& request) const {
  const auto has_failed = [](const Station& station) { return !station.failure.empty(); };
  const auto failed = std::ranges::find_if(stations_, has_failed);
  const auto work =
      static_cast<std::size_t>(std::ranges::count_if(stations_, std::not_fn(has_failed)));
  if (failed == stations_.end() || work == 0 || !could_grow_for(request)) {
    return std::nullopt;
  }
  const std::size_t power = std::min<std::size_t>(std::bit_width(work), blocks_of_.size()) - 1;
  return blocks_needed(request) > blocks_of_[power]
             ? std::optional(ReplicaId{static_cast<std::int32_t>(failed - stations_.begin())})
             : std::nullopt;
}

bool GroupScaling::queues_behind(std::int64_t blocks) const {
  return policy() == ScalePolicy::kLayers && blocks > blocks_of_.front();
}

ScaleCandidate GroupScaling::candidate_of(std::size_t index) const {
  const ReplicaId replica{static_cast<std::int32_t>(index)};
  const bool waits = grouping_.waits_to_part(replica);
  const bool grouped = waits || grouping_.is_group(replica);
  const std::size_t replicas =
      waits ? grouping_.changing(replica).size() : grouping_.replicas_of(replica).size();
  const Observation& load = seen_[index];
  const std::size_t power = std::bit_width(replicas) - 1;
  const GroupBy by = divides_by(policy());
  const std::size_t home = by == GroupBy::kLayers ? 0 : power - 1;  // the power of each home
  const FormedGroups::Formed* const formed = formed_.find(replica, replicas);
  std::int64_t home_blocks = power > 0 && power <= blocks_of_.size() ? blocks_of_[home] : 0;
  if (grouped) {
    home_blocks = std::min(home_blocks, grouping_.group(replica).home.kv.blocks);
  }
  return {.replica = replica,
          .replicas = static_cast<int>(replicas),
          .requests = load.running + load.waiting,
          .formed_for_long =
              grouped && formed != nullptr && formed->for_long && grouping_.group(replica).by == by,
          .holds_long =
              power > 0 && power <= blocks_of_.size() && at(replica).largest_need() > home_blocks,
          .kv_used_share = static_cast<double>(load.kv_blocks_used) /
                           static_cast<double>(std::max<std::int64_t>(1, load.kv_blocks))};
}

bool GroupScaling::closes(std::size_t index) const {
  return !formed_.empty() && policy() != ScalePolicy::kJoint && is_closing(candidate_of(index));
}

bool GroupScaling::must_wait(const Request& request, const RouteCandidates& candidates,
                             bool others_wait) const {
  if (policy() == ScalePolicy::kNeighbours) {
    return false;
  }
  const bool behind = others_wait && queues_behind(blocks_needed(request));
  return (behind || std::all_of(candidates.views.begin(), candidates.views.end(), too_long)) &&
         could_grow_for(request);
}

std::vector<std::size_t> GroupScaling::overlook_length(const Request& request,
                                                       RouteCandidates& candidates) const {
  std::vector<std::size_t> small;
  if (policy() != ScalePolicy::kNeighbours || !could_grow_for(request)) {
    return small;
  }
  for (std::size_t i = 0; i < candidates.views.size(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(candidates.replicas[i])};
    const bool grows = !grouping_.serves_by_layers(replica) || layers_return();
    if (grows && too_long(candidates.views[i])) {
      candidates.views[i].expected.refusal.reset();
      small.push_back(i);
    }
  }
  return small;
}

void GroupScaling::narrow_down(const Request& request, RouteCandidates& candidates) const {
  const bool widest = policy() == ScalePolicy::kPaper || policy() == ScalePolicy::kLayers;
  if (widest && blocks_needed(request) > blocks_of_.front()) {
    pass_over_narrow(candidates);
  } else {
    pass_over_closing(candidates);
  }
}

// Groups that wait for their end get no request that another replica takes.
void GroupScaling::pass_over_closing(RouteCandidates& candidates) const {
  const auto closing = [&](std::size_t i) { return closes(candidates.replicas[i]); };
  const auto takes = [&](std::size_t i) { return !candidates.views[i].expected.refusal; };
  bool others = false;
  for (std::size_t i = 0; i < candidates.views.size(); ++i) {
    others = others || (takes(i) && !closing(i));
  }
  for (std::size_t i = 0; others && i < candidates.views.size(); ++i) {
    if (closing(i)) {
      candidates.views[i].expected.refusal =
          make_error(ErrorCode::kUnavailable, "the group is about to part");
    }
  }
}

void GroupScaling::pass_over_narrow(RouteCandidates& candidates) const {
  const auto replicas = [&](std::size_t i) {
    return candidate_of(candidates.replicas[i]).replicas;
  };
  int widest = 0;
  for (std::size_t i = 0; i < candidates.views.size(); ++i) {
    widest = candidates.views[i].expected.refusal ? widest : std::max(widest, replicas(i));
  }
  for (std::size_t i = 0; i < candidates.views.size(); ++i) {
    ReplicaView& view = candidates.views[i];
    if (!view.expected.refusal && replicas(i) < widest) {
      view.expected.refusal = make_error(ErrorCode::kUnavailable, "a wider group takes it");
    }
  }
}

GroupScaling::Place GroupScaling::place_for(const HeldRequest& held, TimeNs now_ns) const {
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
  return best ? Place{.replica = best->replica} : Place{.replica = {}, .too_late = too_late};
}

// Returns true if a group of so many replicas alone holds a request of so many blocks.
bool GroupScaling::homes_hold(std::size_t homes, std::int64_t blocks) const {
  const std::size_t power = std::bit_width(homes) - 1;
  return power < blocks_of_.size() && blocks_of_[power] >= blocks;
}

std::optional<std::vector<ReplicaId>> GroupScaling::parting_for(const HeldRequest& held) const {
  const GroupBy by = divides_by(policy());
  auto parting = grouping_.parting(by);
  if (parting && by == GroupBy::kLayers && !homes_hold(parting->size(), blocks_needed(held))) {
    return std::nullopt;
  }
  return parting;
}

std::optional<std::vector<ReplicaId>> GroupScaling::homes_for(const HeldRequest& held) const {
  std::vector<ScaleCandidate> candidates;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (in_service(i) && !grouping_.serves_by_layers(ReplicaId{static_cast<std::int32_t>(i)})) {
      candidates.push_back(candidate_of(i));
    }
  }
  const std::int64_t blocks = blocks_needed(held);
  if (policy() == ScalePolicy::kLayers) {
    return choose_scale_layers(candidates, blocks, blocks_of_);
  }
  return held.at ? choose_neighbours(candidates, *held.at)
                 : choose_scale_up(candidates, blocks, blocks_of_);
}

GroupWish GroupScaling::one_of(const std::vector<ReplicaId>& homes) const {
  GroupWish wish{.groups = {{}}, .by = divides_by(policy())};
  for (const ReplicaId home : homes) {
    const std::vector<ReplicaId> replicas = grouping_.replicas_of(home);
    wish.groups.front().insert(wish.groups.front().end(), replicas.begin(), replicas.end());
  }
  return wish;
}

bool GroupScaling::forms_at_rest() const {
  bool at_rest = true;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    at_rest = at_rest && (!in_service(i) || stations_[i].engine->form_at_rest());
  }
  return at_rest;
}

bool GroupScaling::layers_return() const {
  const GroupConfig& config = grouping_.config();
  const bool restores = config.drop == DropPolicy::kPaper && config.restores;
  bool some = false;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const bool by_layers = grouping_.serves_by_layers(ReplicaId{static_cast<std::int32_t>(i)});
    some = some || (in_service(i) && by_layers && (restores || candidate_of(i).formed_for_long));
  }
  return some;
}

std::optional<GroupWish> GroupScaling::to_part() const {
  for (std::size_t i = 0; i < stations_.size() && !formed_.empty(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (in_service(i) && formed_.find(replica, grouping_.replicas_of(replica).size()) != nullptr &&
        may_scale_down(candidate_of(i))) {
      return GroupWish{.groups = grouping_.homes_of(replica)};
    }
  }
  return std::nullopt;
}

}  // namespace protean
