#include "control/outlook.h"

#include <algorithm>

#include "control/policy_constants.h"

namespace protean {
namespace {

// The longest sequence goes on until KV could be larger again.
bool holds_longest(const Way& way, const Load& load) {
  constexpr double kShortestStepS = 1e-4;  // if the cost of steps is not known
  const Course& course = way.course;
  const double step_s = way.speed.step_s(
      course.to.precision,
      {.decoding = std::max(1.0, load.decoding), .context_tokens = load.context_tokens});
  const double steps =
      1 + (course.seconds + course.seconds_back) / std::max(step_s, kShortestStepS);
  return course.to.kv_blocks * way.serving.block_tokens >=
         load.largest_tokens + std::min(load.largest_left_tokens, steps);
}

}  // namespace

Outlook outlook_of(const Way& way, const Load& load, bool lasts) {
  const Load present = share_of(load, 1.0 / way.engines);
  Load most = present;
  most.arrivals.per_s = present.arrivals.most_per_s;
  if (lasts) {
    most.arrivals.per_s *= 1 + kAccuracy;
    most.arrivals.lasts_s = kHorizonS;
  }
  const Prediction now = predict(way.speed, way.serving, way.course, present);
  const Prediction then = predict(way.speed, way.serving, way.course, most);
  const auto late = [&](const Prediction& of) { return way.engines * (of.late + of.backlog); };
  const auto cost = [&](const Prediction& of) {
    return late(of) + way.engines * way.late_per_nat * of.kl_nats;
  };
  return {.cost = cost(now),
          .most_cost = cost(then),
          .late = late(then),
          .serves = holds_longest(way, present),
          .present = now,
          .most = then};
}

bool pays(const Outlook& to, const Outlook& stay) {
  return to.serves &&
         (!stay.serves || to.cost < stay.cost - std::max(kLeastLate, kAccuracy * stay.cost));
}

std::optional<std::size_t> best_of(std::span<const Outlook> ways, const Outlook& stay) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (pays(ways[i], stay) && (!best || ways[i].most_cost < ways[*best].most_cost)) {
      best = i;
    }
  }
  return best;
}

bool no_later(const Outlook& to, const Outlook& stay) {
  return to.serves && to.late < stay.late + kLeastLate;
}

bool has_lasted(double kept_s, const Load& load, double there_and_back_s) {
  return std::min(kept_s, load.arrivals.lasts_s) >= std::min(there_and_back_s, kHorizonS);
}

std::optional<std::size_t> choose_group(const Outlook& stay, std::span<const Outlook> lower,
                                        std::span<const Outlook> groups) {
  const auto group = best_of(groups, stay);
  const auto lowered = best_of(lower, stay);
  const bool lowers = group && lowered && lower[*lowered].most_cost < groups[*group].most_cost;
  return lowers ? std::nullopt : group;
}

}  // namespace protean
