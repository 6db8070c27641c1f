#include "control/fleet_choice.h"

#include <algorithm>

#include "control/policy_constants.h"

namespace protean {
namespace {

double late_of(const Prediction& prediction) {
  return prediction.late + prediction.backlog;
}

bool is_better(const WayOutlook& way, const WayOutlook& stay) {
  return way.serves &&
         (!stay.serves || way.cost < stay.cost - std::max(kLeastLate, kAccuracy * stay.cost));
}

// Returns the way that pays and costs least at the most arrivals.
std::optional<std::size_t> best_of(std::span<const WayOutlook> ways, const WayOutlook& stay) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (is_better(ways[i], stay) && (!best || ways[i].most_cost < ways[*best].most_cost)) {
      best = i;
    }
  }
  return best;
}

}  // namespace

WayOutlook outlook_of(const ServingWay& way, const Load& load, bool lasts) {
  const Load present = share_of(load, 1.0 / way.units);
  Load most = present;
  most.arrivals.per_s = present.arrivals.most_per_s;
  if (lasts) {
    most.arrivals.per_s *= 1 + kAccuracy;
    most.arrivals.lasts_s = kHorizonS;
  }
  const Prediction now = predict(way.speed, way.serving, way.course, present);
  const Prediction then = predict(way.speed, way.serving, way.course, most);
  const auto cost = [&](const Prediction& of) {
    return way.units * (late_of(of) + way.late_per_nat * of.kl_nats);
  };
  return {.cost = cost(now),
          .most_cost = cost(then),
          .late = way.units * late_of(then),
          .serves = way.course.to.kv_blocks * way.serving.block_tokens >= load.largest_tokens};
}

Load sum_of(std::span<const Load> loads, const ArrivalRate::Rate& arrivals) {
  Load sum;
  double left = 0;
  double weights = 0;
  for (const Load& load : loads) {
    sum.decoding += load.decoding;
    sum.context_tokens += load.context_tokens;
    left += load.decoding * load.left_tokens;
    sum.admitted += load.admitted;
    sum.admitted_tokens += load.admitted_tokens;
    sum.waiting += load.waiting;
    sum.waiting_tokens += load.waiting_tokens;
    sum.oldest_wait_s = std::max(sum.oldest_wait_s, load.oldest_wait_s);
    if (load.largest_tokens > sum.largest_tokens) {
      sum.largest_tokens = load.largest_tokens;
      sum.largest_left_tokens = load.largest_left_tokens;
    }
    // Means count by the requests that they are of; a replica without any counts a little.
    const double weight = load.decoding + load.admitted + load.waiting + 0.01;
    weights += weight;
    sum.answer_tokens += weight * load.answer_tokens;
    sum.running_prompt_tokens += weight * load.running_prompt_tokens;
    sum.running_drawn_tokens += weight * load.running_drawn_tokens;
    sum.hit_share += weight * load.hit_share;
  }
  sum.left_tokens = left / std::max(1.0, sum.decoding);
  for (double* const mean : {&sum.answer_tokens, &sum.running_prompt_tokens,
                             &sum.running_drawn_tokens, &sum.hit_share}) {
    *mean /= weights;
  }
  sum.arrivals = arrivals;
  return sum;
}

Load share_of(const Load& load, double share) {
  Load part = load;
  for (double* const amount :
       {&part.decoding, &part.context_tokens, &part.admitted, &part.admitted_tokens, &part.waiting,
        &part.waiting_tokens, &part.arrivals.per_s, &part.arrivals.most_per_s,
        &part.arrivals.later_per_s}) {
    *amount *= share;
  }
  return part;
}

std::optional<std::size_t> choose_group(const WayOutlook& stay, std::span<const WayOutlook> lower,
                                        std::span<const WayOutlook> groups) {
  const auto group = best_of(groups, stay);
  const auto lowered = best_of(lower, stay);
  const bool lowers = group && lowered && lower[*lowered].most_cost < groups[*group].most_cost;
  return lowers ? std::nullopt : group;
}

bool pays(const Parting& parting) {
  const double late = parting.parts.late + parting.returns;
  const double before = parting.group.late;
  const bool better = before < kLeastLate
                          ? late < kLeastLate
                          : late < before - std::max(kLeastLate, kAccuracy * before);
  return parting.parts.serves && better && parting.lasted_s >= parting.there_and_back_s;
}

StepCost cost_of(const GroupCost& cost, const ModelSpec& spec, const Form& form) {
  const std::vector<Stretch> stretches = stretches_of(spec, form);
  StepCost slowest = cost.on(stretches.front().copies.front().size());
  double weights = 0;
  double attention = 0;
  for (const Stretch& stretch : stretches) {
    weights = std::max(weights, stretch.part.weights);
    attention = std::max(attention, stretch.part.attention);
  }
  for (double* const time : {&slowest.context_token_us, &slowest.sequence_us, &slowest.kv_token_us,
                             &slowest.far_kv_token_us}) {
    *time *= attention;
  }
  for (LayersCost& layers : slowest.layers) {
    for (double* const time :
         {&layers.step_us, &layers.token_us, &layers.more_token_us, &layers.tile_us}) {
      *time *= weights;
    }
  }
  return slowest;
}

}  // namespace protean
