// Groups by what they are predicted to save (docs/policy.md): `--scale joint` and `--drop joint`.

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "control/fleet_choice.h"
#include "control/plan_regroup.h"
#include "control/policy_constants.h"
#include "cost/memory.h"
#include "fleet/fleet.h"

namespace protean {
namespace {

constexpr TimeNs kWeighEveryNs = kNsPerS / 10;  // as often as engines decide
constexpr int kHomes = 2;                       // that become one at a time

}  // namespace

bool weighs(const GroupConfig& config) {
  return config.scale == ScalePolicy::kJoint || config.drop == DropPolicy::kJoint;
}

// Counts a request that was just placed, unless it was refused.
void Fleet::count_arrival(const Asked& asked, TimeNs now_ns) {
  const bool accepted = owner_.contains(asked.id) ||
                        std::any_of(held_.begin(), held_.end(), [&](const HeldRequest& held) {
                          return held.asks().id == asked.id;
                        });
  if (!accepted) {
    return;
  }
  weighing_.arrivals.arrived(now_ns, asked.prompt_tokens);
  if (asked.blocks > grouping_.config().form.kv.blocks) {
    weighing_.long_arrivals_ns.push_back(now_ns);
  }
}

// Forms or parts a group if that pays, else lets engines lower their precision as their policies
// decide. Looks ten times a second.
void Fleet::weigh(TimeNs now_ns) {
  if (now_ns < weighing_.next_ns) {
    return;
  }
  weighing_.next_ns = now_ns + kWeighEveryNs;
  if (held_.empty() && !grouping_.busy() && regroups(now_ns)) {
    return;
  }
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (in_service(i)) {
      stations_[i].engine->allow_lowering(now_ns);
    }
  }
}

// Forms or parts a group if that pays. Returns false if none does.
bool Fleet::regroups(TimeNs now_ns) {
  forget_parted();
  std::vector<Unit> units;
  std::vector<Load> loads;
  double replicas = 0;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (!in_service(i)) {
      continue;
    }
    auto view = stations_[i].engine->form_view();
    if (!view) {
      return false;  // nothing is known of its load
    }
    loads.push_back(view->load);
    const auto count = std::ssize(grouping_.replicas_of(ReplicaId{static_cast<std::int32_t>(i)}));
    replicas += static_cast<double>(count);
    units.push_back({i, static_cast<int>(count), *std::move(view)});
  }
  if (units.empty() || now_ns < attempts_.not_before_ns) {
    return false;
  }
  const Load one = share_of(sum_of(loads, weighing_.arrivals.rate(now_ns)), 1 / replicas);
  return part_one(units, one, now_ns) || group_two(units, one, now_ns);
}

// Parts the first group that a policy formed and that had better part. Returns false if there is
// none. `one` is the load of a replica, if all replicas have an equal share.
bool Fleet::part_one(const std::vector<Unit>& units, const Load& one, TimeNs now_ns) {
  const TimeNs horizon_ns = static_cast<TimeNs>(kHorizonS * kNsPerS);
  while (!weighing_.long_arrivals_ns.empty() &&
         weighing_.long_arrivals_ns.front() < now_ns - horizon_ns) {
    weighing_.long_arrivals_ns.pop_front();
  }
  for (const Unit& unit : units) {
    const ReplicaId replica{static_cast<std::int32_t>(unit.index)};
    const Engine& engine = *stations_[unit.index].engine;
    const auto since = formed_.find(std::pair(replica, static_cast<std::size_t>(unit.replicas)));
    if (since == formed_.end() || !engine.form_at_rest()) {
      continue;
    }
    const auto home = grouping_.home_engine(replica).form_view();
    if (static_cast<double>(engine.largest_need()) > home->form.kv_blocks) {
      continue;  // it would wait for the end of a request and take no other that is as long
    }
    Load load = share_of(one, unit.replicas);
    load.largest_tokens = unit.view.load.largest_tokens;
    const double there_s = seconds_to_group(*home, load);
    const double back_s = there_s + static_cast<double>(weight_bytes(grouping_.config().spec,
                                                                     grouping_.config().form)) /
                                        kHomes / unit.view.copy_bytes_per_s;
    FormTraits from = unit.view.form;
    from.kv_blocks /= kHomes;
    const ServingWay stays = way_of(unit.view, 1, {unit.view.form, unit.view.form, 0});
    const ServingWay parts = way_of(*home, kHomes, {from, home->form, back_s});
    const double kept_s = static_cast<double>(now_ns - since->second) / kNsPerS;
    const WayOutlook apart = outlook_of(parts, load, false);
    const std::array together = {outlook_of(stays, load, false)};
    if (choose_group(apart, {}, together)) {
      continue;  // it would form again at once
    }
    if (pays({.group = outlook_of(stays, load, true),
              .parts = outlook_of(parts, load, true),
              .returns = static_cast<double>(weighing_.long_arrivals_ns.size()),
              .lasted_s = std::min(kept_s, load.arrivals.lasts_s),
              .there_and_back_s = there_s + back_s})) {
      const bool begun =
          grouping_
              .want({.groups = grouping_.homes_of(replica)},
                    "no more requests are predicted to be late without the group", false, now_ns)
              .ok();
      if (!begun) {
        attempts_.not_before_ns = now_ns + kNsPerS;
      }
      return begun;
    }
  }
  return false;
}

ServingWay Fleet::way_of(const FormView& view, int units, Course course) {
  return {.units = units,
          .speed = view.speed,
          .serving = view.serving,
          .course = course,
          .late_per_nat = view.late_per_nat};
}

// Predicts the time in which two units become one: devices exchange a half of the KV in use, and
// change some halves of layers between two steps.
double Fleet::seconds_to_group(const FormView& view, const Load& load) const {
  const GroupConfig& config = grouping_.config();
  const double kv_bytes = load.context_tokens / config.form.kv.block_tokens *
                          static_cast<double>(kv_block_bytes(config.spec, config.form.kv));
  const int steps = ceil_div(2 * config.spec.layers + 1, config.steps_at_once) + 2;
  const double step_s = view.speed.step_s(
      view.form.precision, {load.decoding / kHomes, load.context_tokens / kHomes, 0});
  return kv_bytes / kHomes / view.copy_bytes_per_s + steps * step_s;
}

// Returns how two units like this one would serve as a group; nothing if they cannot.
std::optional<ServingWay> Fleet::as_group(const Unit& unit, GroupBy by, const Load& load) const {
  const GroupConfig& config = grouping_.config();
  const Form home = joined_form(*stations_[unit.index].engine->form(), 1);
  const Result<Form> wide = divided_form(home, kHomes, by);
  if (!wide.ok()) {
    return std::nullopt;
  }
  const SchedulerConfig limits = config.wide_engine(*wide).scheduler;
  FormTraits from = unit.view.form;
  from.kv_blocks *= kHomes;
  FormTraits to = unit.view.form;
  to.kv_blocks = static_cast<double>(
      std::max(wide->kv.blocks,
               kv_blocks_beside(config.spec, *wide, config.budget.pages - config.budget.reserve,
                                config.budget.page_bytes)));
  ServingWay way = way_of(unit.view, 1, {from, to, seconds_to_group(unit.view, load)});
  if (config.cost.shared.front().is_known()) {
    way.speed = unit.view.speed.at_cost(cost_of(config.cost, config.spec, *wide));
  }
  way.serving.most_sequences = limits.max_num_seqs;
  way.serving.steps_in_flight = limits.steps_in_flight;
  return way;
}

// Makes one group of two units if that pays. Returns false if it does not.
bool Fleet::group_two(std::vector<Unit>& units, const Load& one, TimeNs now_ns) {
  const auto two = two_to_weigh(units);
  if (!two) {
    return false;
  }
  const Unit& unit = two->front();
  Load load = share_of(one, kHomes * unit.replicas);
  load.largest_tokens =
      std::max(unit.view.load.largest_tokens, two->back().view.load.largest_tokens);
  const FormView& view = unit.view;
  const WayOutlook stay = outlook_of(way_of(view, kHomes, {view.form, view.form, 0}), load, false);
  if (stay.serves && stay.cost < kLeastLate) {
    return false;  // no way saves a request
  }
  std::vector<WayOutlook> lower;
  for (const Course& down : view.down) {
    lower.push_back(outlook_of(way_of(view, kHomes, down), load, false));
  }
  std::vector<GroupBy> ways;
  std::vector<WayOutlook> groups;
  for (const auto& [by, asked] :
       {std::pair(GroupBy::kShards, grouping_.config().scale == ScalePolicy::kJoint),
        {GroupBy::kLayers, grouping_.config().drop == DropPolicy::kJoint}}) {
    if (const auto way = asked ? as_group(unit, by, load) : std::nullopt) {
      ways.push_back(by);
      groups.push_back(outlook_of(*way, load, false));
    }
  }
  const auto chosen = choose_group(stay, lower, groups);
  if (!chosen) {
    return false;
  }
  const std::string reason =
      stay.serves ? fmt::format("in a group, {:.1f} requests would be late; now {:.1f}",
                                groups[*chosen].late, stay.late)
                  : "the longest request needs more KV blocks than a replica has";
  GroupWish wish{.groups = {{}}, .by = ways[*chosen]};
  for (const Unit& one_of : *two) {
    const std::vector<ReplicaId> replicas =
        grouping_.replicas_of(ReplicaId{static_cast<std::int32_t>(one_of.index)});
    wish.groups.front().insert(wish.groups.front().end(), replicas.begin(), replicas.end());
  }
  const bool begun = grouping_.want(wish, reason, false, now_ns).ok();
  if (begun) {
    remember_group(wish.groups.front(), now_ns);
  } else {
    attempts_.not_before_ns = now_ns + kNsPerS;
  }
  count_failures(now_ns);
  return begun;
}

// Returns two units of equal size and form that could become one: of the smallest size, the one
// with the longest sequence if its KV does not hold that, else the one where most requests wait;
// and the least loaded of the others. Groups by layers stay as they are, because their devices do
// not join others.
std::optional<std::vector<Fleet::Unit>> Fleet::two_to_weigh(std::vector<Unit>& units) const {
  std::erase_if(units, [this](const Unit& unit) {
    const ReplicaId replica{static_cast<std::int32_t>(unit.index)};
    return !stations_[unit.index].engine->form_at_rest() ||
           (grouping_.is_group(replica) && grouping_.by(replica) == GroupBy::kLayers);
  });
  const auto lacks = [](const Unit& unit) {
    return std::max(0.0, unit.view.load.largest_tokens -
                             unit.view.form.kv_blocks * unit.view.serving.block_tokens);
  };
  const auto form_of = [this](const Unit& unit) {
    return joined_form(*stations_[unit.index].engine->form(), 1);
  };
  std::sort(units.begin(), units.end(), [&](const Unit& a, const Unit& b) {
    return std::tuple(a.replicas, -lacks(a), -a.view.load.waiting, a.index) <
           std::tuple(b.replicas, -lacks(b), -b.view.load.waiting, b.index);
  });
  for (auto first = units.begin(); first != units.end(); ++first) {
    std::optional<Unit> second;
    const auto busy = [](const Unit& unit) {
      return unit.view.load.waiting + unit.view.load.admitted + unit.view.load.decoding;
    };
    for (auto other = std::next(first); other != units.end(); ++other) {
      if (other->replicas == first->replicas && form_of(*other) == form_of(*first) &&
          (!second || busy(*other) < busy(*second))) {
        second = *other;
      }
    }
    if (second) {
      return std::vector{*first, *std::move(second)};
    }
  }
  return std::nullopt;
}

}  // namespace protean
