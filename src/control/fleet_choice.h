#pragma once

#include <optional>
#include <span>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "control/load.h"
#include "control/predict.h"
#include "control/step_speed.h"
#include "cost/group_cost.h"

namespace protean {

// One way in which a part of a fleet may serve its load: as equal units, among which the router
// divides the load. A unit is a replica or a group of replicas.
struct ServingWay {
  int units = 1;
  StepSpeed speed;
  Serving serving;
  Course course;            // of each unit
  double late_per_nat = 0;  // the price of quality
};

// What becomes of a load on a way. Costs are late requests, those that wait at the end twice, and
// the price of the quality lost.
struct WayOutlook {
  double cost = 0;       // at the present arrivals, while they are expected to last
  double most_cost = 0;  // at the most that they may be
  double late = 0;       // the late requests of these
  bool serves = true;    // KV holds the longest sequence
};

// Predicts a way, see predict(). If it is to `last`, arrivals are the most that they may be, and a
// fifth more, for a minute.
WayOutlook outlook_of(const ServingWay& way, const Load& load, bool lasts);

// Returns the load of all replicas together, with the arrivals of the whole fleet.
Load sum_of(std::span<const Load> loads, const ArrivalRate::Rate& arrivals);
// Returns an equal share of a load. The longest sequence stays as long.
Load share_of(const Load& load, double share);

// Chooses between two units that become one group, in one of several ways, and what else serves
// their load: staying as they are, or forms of lower precision. Returns the index of the group that
// pays, costs least at the most arrivals, and no more than the best form of lower precision does:
// groups lose no quality. Nothing: the units stay two. A way pays if it saves at least a request
// and a fifth of the cost, or if it alone holds the longest sequence.
std::optional<std::size_t> choose_group(const WayOutlook& stay, std::span<const WayOutlook> lower,
                                        std::span<const WayOutlook> groups);

// What decides whether a group parts. pays() returns true if it should: a group that serves all
// requests in time parts if its replicas would too, another one if that saves at least a request
// and a fifth of those late. Each of the `returns` requests of the last minute that needed a group
// counts as late without it. The present arrivals and the group must have lasted at least as long
// as parting and grouping take.
struct Parting {
  WayOutlook group;
  WayOutlook parts;
  double returns = 0;
  double lasted_s = 0;
  double there_and_back_s = 0;
};
bool pays(const Parting& parting);

// Returns what steps cost on the devices of a form that divides layers among devices (`on`), or
// among stages: the slowest stage counts, because as many steps are in flight.
StepCost cost_of(const GroupCost& cost, const ModelSpec& spec, const Form& form);

}  // namespace protean
