// Groups by what they are predicted to save (docs/policy.md): `--scale joint` and `--drop joint`.

#include "fleet/weighing.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <utility>

#include "control/outlook.h"
#include "control/plan_regroup.h"
#include "control/policy_constants.h"
#include "cost/memory.h"

namespace protean {
namespace {

constexpr TimeNs kWeighEveryNs = kNsPerS / 10;  // as often as engines decide
constexpr int kHomes = 2;                       // that become one at a time

}  // namespace

Weighing::Weighing(const Grouping& grouping, const std::vector<Station>& stations,
                   const FormedGroups& formed, std::int64_t most_blocks)
    : grouping_(grouping), stations_(stations), formed_(formed), most_blocks_(most_blocks) {}

Engine& Weighing::at(ReplicaId replica) const {
  return *stations_[static_cast<std::size_t>(replica.value)].engine;
}

// Returns true if groups of this kind are formed and parted by what that is predicted to save.
bool Weighing::is_joint(GroupBy by) const {
  const GroupConfig& config = grouping_.config();
  return by == GroupBy::kShards ? config.scale == ScalePolicy::kJoint
                                : config.drop == DropPolicy::kJoint;
}

void Weighing::arrived(std::int64_t prompt_tokens, std::int64_t blocks, TimeNs now_ns) {
  arrivals_.arrived(now_ns, prompt_tokens);
  if (blocks > grouping_.config().form.kv.blocks) {
    long_arrivals_.push_back({now_ns, blocks});
  }
}

bool Weighing::due(TimeNs now_ns) {
  const bool due = now_ns >= next_ns_;
  next_ns_ = due ? now_ns + kWeighEveryNs : next_ns_;
  return due;
}

std::vector<Weighing::Proposal> Weighing::proposals(TimeNs now_ns) {
  const std::vector<ReplicaId> waiting = grouping_.waiting_to_part();
  if (grouping_.busy() && waiting.empty()) {
    return {};
  }
  std::vector<Weighed> candidates;
  std::vector<Load> loads;
  double replicas = 0;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (!grouping_.in_service(replica)) {
      continue;
    }
    auto view = stations_[i].engine->form_view(now_ns);
    if (!view) {
      return {};  // nothing is known of its load
    }
    loads.push_back(view->load);
    const auto count = std::ssize(grouping_.devices_of(replica));
    replicas += static_cast<double>(count);
    candidates.push_back({replica, static_cast<int>(count), *view});
  }
  if (candidates.empty()) {
    return {};
  }
  const Load one = share_of(sum_of(loads, arrivals_.rate(now_ns)), 1 / replicas);
  std::vector<Proposal> proposals;
  const auto add = [&](std::optional<Proposal> proposal) {
    if (proposal) {
      proposals.push_back(*std::move(proposal));
    }
  };
  for (const ReplicaId waits : waiting) {
    add(stay_together(waits, candidates, one, now_ns));
  }
  if (waiting.empty()) {
    add(part_one(candidates, one, now_ns));
    add(group_two(std::move(candidates), one));
  }
  return proposals;
}

// Returns the number of requests of the last minute that the group serves or could grow for: the
// next of them would wait for it again. A group by layers does not grow.
std::ptrdiff_t Weighing::long_arrivals_for(const Group& group) const {
  const std::int64_t most =
      group.by == GroupBy::kLayers ? most_kv_blocks(grouping_.config(), group.wide) : most_blocks_;
  return std::ranges::count_if(
      long_arrivals_, [most](const LongArrival& arrival) { return arrival.blocks <= most; });
}

// Proposes to part the first group that a policy formed and that had better part. `one` is the load
// of a replica, if all replicas have an equal share.
std::optional<Weighing::Proposal> Weighing::part_one(const std::vector<Weighed>& candidates,
                                                     const Load& one, TimeNs now_ns) {
  const TimeNs horizon_ns = static_cast<TimeNs>(kHorizonS * kNsPerS);
  while (!long_arrivals_.empty() && long_arrivals_.front().at_ns < now_ns - horizon_ns) {
    long_arrivals_.pop_front();
  }
  for (const Weighed& candidate : candidates) {
    const ReplicaId replica = candidate.replica;
    const Engine& engine = at(replica);
    const FormedGroups::Formed* const formed =
        formed_.find(replica, static_cast<std::size_t>(candidate.replicas));
    if (formed == nullptr || !engine.form_at_rest() || !is_joint(grouping_.by(replica))) {
      continue;
    }
    const Load load = load_of(std::span(&candidate, 1), one);
    const Way parts = as_homes(candidate, load, now_ns);
    if (static_cast<double>(engine.largest_need()) > parts.course.to.kv_blocks) {
      continue;  // it would wait for the end of a request and take no other that is as long
    }
    const Way& stays = candidate.view.way;
    if (pays(outlook_of(stays, load, false), outlook_of(parts, load, false))) {
      continue;  // it would form again at once
    }
    Outlook apart = outlook_of(parts, load, true);
    apart.late += static_cast<double>(long_arrivals_for(grouping_.group(replica)));
    const double kept_s = static_cast<double>(now_ns - formed->since_ns) / kNsPerS;
    if (no_later(apart, outlook_of(stays, load, true)) &&
        has_lasted(kept_s, load, parts.course.seconds + parts.course.seconds_back)) {
      return Proposal{{.groups = grouping_.homes_of(replica)},
                      "no more requests are predicted to be late without the group"};
    }
  }
  return std::nullopt;
}

// Proposes to take back the order to part a group that still waits for room in a replica, if it
// would form again at once.
std::optional<Weighing::Proposal> Weighing::stay_together(ReplicaId replica,
                                                          const std::vector<Weighed>& candidates,
                                                          const Load& one, TimeNs now_ns) const {
  const auto candidate = std::find_if(candidates.begin(), candidates.end(),
                                      [&](const Weighed& some) { return some.replica == replica; });
  const Group& group = grouping_.group(replica);
  if (candidate == candidates.end() || !is_joint(group.by)) {
    return std::nullopt;
  }
  const Load load = load_of(std::span(&*candidate, 1), one);
  Way stays = candidate->view.way;
  stays.course.to.kv_blocks = static_cast<double>(most_kv_blocks(grouping_.config(), group.wide));
  stays.course = {.from = stays.course.to, .to = stays.course.to};
  if (!pays(outlook_of(stays, load, false),
            outlook_of(as_homes(*candidate, load, now_ns), load, false))) {
    return std::nullopt;
  }
  return Proposal{{.groups = {grouping_.devices_of(replica)}, .by = group.by},
                  "more requests would be late without the group"};
}

// Returns the load of candidates if all replicas have an equal share of it, with the longest
// sequence of these candidates.
Load Weighing::load_of(std::span<const Weighed> candidates, const Load& one) {
  double replicas = 0;
  for (const Weighed& candidate : candidates) {
    replicas += candidate.replicas;
  }
  Load load = share_of(one, replicas);
  load.largest_tokens = load.largest_left_tokens = 0;
  for (const Weighed& candidate : candidates) {
    keep_longest(candidate.view.load, load);
  }
  return load;
}

// Predicts the time in which devices exchange half of the KV in use, and change what they hold in
// so many batches, each between two steps.
double Weighing::seconds_to_change(const FormView& view, const Load& load, int batches) const {
  const GroupConfig& config = grouping_.config();
  const double kv_bytes = load.context_tokens / config.form.kv.block_tokens *
                          static_cast<double>(kv_block_bytes(config.spec, config.form.kv));
  const double step_s = view.way.speed.step_s(
      view.way.course.to.precision,
      {.decoding = load.decoding / kHomes, .context_tokens = load.context_tokens / kHomes});
  return kv_bytes / kHomes / view.copy_bytes_per_s + (batches + 2) * step_s;
}

// Predicts the time in which two candidates become one: they drop at once what moves no KV.
double Weighing::seconds_to_group(const FormView& view, const Load& load) const {
  const GroupConfig& config = grouping_.config();
  return seconds_to_change(view, load, 1 + ceil_div(config.spec.layers, config.steps_at_once));
}

// Predicts the time in which a group becomes its homes: they also fetch what they dropped.
double Weighing::seconds_to_part(const FormView& view, GroupBy by, const Load& load) const {
  const GroupConfig& config = grouping_.config();
  std::int64_t bytes = weight_bytes(config.spec, config.form);
  if (by == GroupBy::kShards && config.form.attention_kept > 0) {
    for (const LayerPrecision& layer : config.form.layer_precision) {
      bytes -= component_bytes(config.spec, Component::kAttention, layer.attention);
    }
  }
  const int batches = ceil_div(2 * config.spec.layers + 1, config.steps_at_once);
  return seconds_to_change(view, load, batches) +
         static_cast<double>(bytes) / kHomes / view.copy_bytes_per_s;
}

// Returns how a group's homes would serve, at the speed that their own steps have taught: what a
// group's steps teach is also how far its sums are from what is assumed of them.
Way Weighing::as_homes(const Weighed& candidate, const Load& load, TimeNs now_ns) const {
  const Group& group = grouping_.group(candidate.replica);
  const FormView home = *group.first->form_view(now_ns);
  Way way = home.way;
  way.engines = kHomes;
  way.course.from = candidate.view.way.course.to;
  way.course.from.kv_blocks /= kHomes;
  way.course.seconds = seconds_to_part(home, group.by, load);
  way.course.seconds_back = seconds_to_group(home, load);
  return way;
}

// Returns the form of a candidate, with its devices numbered, so that forms compare.
Form Weighing::form_of(const Weighed& candidate) const {
  return joined_form(*at(candidate.replica).form(), 1);
}

// Returns true if two candidates may become a group, but for what room they have.
bool Weighing::may_join(const Weighed& a, const Weighed& b) const {
  std::array<Form, 2> forms = {form_of(a), form_of(b)};
  if (!of_equal_devices(forms) && is_joint(GroupBy::kLayers)) {  // KV differs like their memory
    for (Form& form : forms) {
      form.kv.blocks = 0;
      for (Holding& holding : form.group) {
        holding.lacking_pages = 0;
      }
    }
  }
  return a.replicas == b.replicas && forms.front() == forms.back();
}

// Returns false if two candidates lack memory to become a group with the KV that they have.
// Candidates of equal memory let their KV shrink.
bool Weighing::have_room(const Weighed& a, const Weighed& b) {
  std::array<Form, 2> homes = {form_of(a), form_of(b)};
  if (of_equal_devices(homes)) {
    return true;
  }
  Room& room = rooms_[{a.replica, b.replica}];
  if (room.homes != homes) {
    const GroupConfig& config = grouping_.config();
    room.suffices = rebalanced_form_in(config.spec, homes, config.budget).ok();
    room.homes = std::move(homes);
  }
  return room.suffices;
}

// Returns how two candidates would serve as a group; nothing if they cannot.
std::optional<Way> Weighing::as_group(const std::vector<Weighed>& two, GroupBy by,
                                      const Load& load) const {
  const GroupConfig& config = grouping_.config();
  const Weighed& candidate = two.front();
  const std::array<Form, 2> homes = {form_of(candidate), form_of(two.back())};
  const bool equal = of_equal_devices(homes);
  const Result<Form> wide = equal ? divided_form(homes.front(), kHomes, by)
                                  : rebalanced_form(config.spec, homes, config.budget);
  if (!wide.ok() || (!equal && by != GroupBy::kLayers)) {
    return std::nullopt;
  }
  const EngineConfig engine = config.wide_engine(*wide);
  Way way = candidate.view.way;
  way.speed = speed_as(engine, way.speed);
  way.serving.most_sequences = engine.scheduler.max_num_seqs;
  way.serving.steps_in_flight = engine.scheduler.steps_in_flight;
  way.course.from.kv_blocks += two.back().view.way.course.from.kv_blocks;
  way.course.to.kv_blocks = static_cast<double>(most_kv_blocks(config, *wide));
  way.course.seconds = seconds_to_group(candidate.view, load);
  way.course.seconds_back = seconds_to_part(candidate.view, by, load);
  return way;
}

// Proposes to make one group of two candidates if that pays.
std::optional<Weighing::Proposal> Weighing::group_two(std::vector<Weighed> candidates,
                                                      const Load& one) {
  const auto two = two_to_weigh(std::move(candidates));
  if (!two) {
    return std::nullopt;
  }
  const Weighed& candidate = two->front();
  const Engine& engine = at(candidate.replica);
  const Load load = load_of(*two, one);
  const auto of_two = [&](Way way) {
    way.engines = kHomes;
    return outlook_of(way, load, false);
  };
  const Outlook stay = of_two(candidate.view.way);
  if (stay.serves && stay.cost < kLeastLate) {
    return std::nullopt;  // no way saves a request
  }
  std::vector<Outlook> lower;
  for (const Way& down : engine.ways_down()) {
    lower.push_back(of_two(down));
  }
  std::vector<GroupBy> ways;
  std::vector<Outlook> groups;
  for (const GroupBy by : {GroupBy::kShards, GroupBy::kLayers}) {
    if (const auto way = is_joint(by) ? as_group(*two, by, load) : std::nullopt) {
      ways.push_back(by);
      groups.push_back(outlook_of(*way, load, false));
    }
  }
  const auto chosen = choose_group(stay, lower, groups);
  if (!chosen) {
    return std::nullopt;
  }
  GroupWish wish{.groups = {{}}, .by = ways[*chosen]};
  for (const Weighed& one_of : *two) {
    const std::vector<ReplicaId> replicas = grouping_.replicas_of(one_of.replica);
    wish.groups.front().insert(wish.groups.front().end(), replicas.begin(), replicas.end());
  }
  return Proposal{std::move(wish),
                  stay.serves ? fmt::format("in a group, {:.1f} requests would be late; now {:.1f}",
                                            groups[*chosen].late, stay.late)
                              : "the longest request needs more KV blocks than a replica has"};
}

// Returns two candidates of equal size and form that could become one and have room for that: of
// the smallest size, the one with the longest sequence if its KV does not hold that, else the one
// where most requests wait; and the least loaded of the others. Groups by layers stay as they are,
// because their devices do not join others.
std::optional<std::vector<Weighing::Weighed>> Weighing::two_to_weigh(
    std::vector<Weighed> candidates) {
  std::erase_if(candidates, [this](const Weighed& candidate) {
    return !at(candidate.replica).form_at_rest() || grouping_.serves_by_layers(candidate.replica);
  });
  const auto lacks = [](const Weighed& candidate) {
    return std::max(
        0.0, candidate.view.load.largest_tokens -
                 candidate.view.way.course.to.kv_blocks * candidate.view.way.serving.block_tokens);
  };
  std::sort(candidates.begin(), candidates.end(), [&](const Weighed& a, const Weighed& b) {
    return std::tuple(a.replicas, -lacks(a), -a.view.load.waiting.prompts, a.replica) <
           std::tuple(b.replicas, -lacks(b), -b.view.load.waiting.prompts, b.replica);
  });
  const auto busy = [](const Weighed& candidate) {
    return candidate.view.load.waiting.prompts + candidate.view.load.admitted.prompts +
           candidate.view.load.decoding;
  };
  for (auto first = candidates.begin(); first != candidates.end(); ++first) {
    std::vector<Weighed> others;
    std::copy_if(std::next(first), candidates.end(), std::back_inserter(others),
                 [&](const Weighed& other) { return may_join(*first, other); });
    std::ranges::stable_sort(others, {}, busy);
    const auto second = std::ranges::find_if(
        others, [&](const Weighed& other) { return have_room(*first, other); });
    if (second != others.end()) {
      return std::vector{*first, *second};
    }
  }
  return std::nullopt;
}

}  // namespace protean
