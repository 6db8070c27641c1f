#include "control/morph_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "control/plan_morph.h"
#include "cost/memory.h"

namespace protean {
namespace {

// Returns late requests; those that wait at the end count twice.
double late(const Prediction& prediction) {
  return prediction.late + prediction.backlog;
}

FormPrediction shown(const Form& form, const Prediction& present, const Prediction& most) {
  return {.precision = precision_label(form),
          .kv_blocks = form.kv.blocks,
          .late = present.late,
          .late_most = most.late,
          .kv_short_blocks = most.kv_short_blocks,
          .answer_tokens_per_s = present.answer_tokens_per_s,
          .capacity_per_s = present.capacity_per_s,
          .kl_nats = present.kl_nats};
}

std::string reason_for(const Form& form, const Prediction& before, const Prediction& after) {
  return fmt::format(
      "at {}, {:.1f} requests would be late and {:.2f} nats be lost; now {:.1f} and {:.2f}",
      precision_label(form), after.late, after.kl_nats, before.late, before.kl_nats);
}

}  // namespace

MorphPolicy::MorphPolicy(const PolicyOptions& options, const FormBounds& bounds,
                         const Serving& serving)
    : options_(options), bounds_(bounds), serving_(serving), path_(form_path(bounds)) {
  serving_.ttft_s = static_cast<double>(options.ttft_ns) / kNsPerS;
  serving_.tpot_s = static_cast<double>(options.tpot_ns) / kNsPerS;
  for (const Component component :
       {Component::kAttention, Component::kMlp, Component::kEmbeddings}) {
    for (const Precision precision : kPrecisions) {
      bytes_[static_cast<std::size_t>(component)][index_of(precision)] =
          static_cast<double>(component_bytes(bounds.spec, component, precision));
    }
  }
  // Forms whose weights differ by the accuracy of predictions, and the last of each rung, where the
  // embeddings are lowered.
  const auto layer_bytes = [this](const Form& form) {
    double bytes = 0;
    for (const LayerPrecision& layer : form.layer_precision) {
      for (const Component half : kLayerHalves) {
        bytes += bytes_[static_cast<std::size_t>(half)][index_of(layer.of(half))];
      }
    }
    return bytes;
  };
  const auto high = [&](std::size_t at) { return weight_bits(highest_precision(path_[at])); };
  double last_bytes = std::numeric_limits<double>::max();
  for (std::size_t at = 0; at < path_.size(); ++at) {
    const bool ends_rung = at + 1 == path_.size() || (at > 0 && high(at) < high(at - 1));
    const double bytes = layer_bytes(path_[at]);
    if (ends_rung || last_bytes > (1 + kAccuracy) * bytes) {
      candidates_.push_back(candidate_of(path_[at]));
      last_bytes = bytes;
    }
  }
}

MorphPolicy::Candidate MorphPolicy::candidate_of(Form form) const {
  const FormTraits traits{step_precision(bounds_.spec, form), static_cast<double>(form.kv.blocks),
                          kl_nats(options_.loss, bounds_, form)};
  return {std::move(form), traits};
}

double MorphPolicy::seconds(const Form& from, const Form& to, double copy_bytes_per_s) const {
  double bytes = 0;
  const auto add = [&](Component component, Precision before, Precision after) {
    bytes += before == after ? 0 : bytes_[static_cast<std::size_t>(component)][index_of(after)];
  };
  for (std::size_t i = 0; i < to.layer_precision.size(); ++i) {
    for (const Component half : kLayerHalves) {
      add(half, from.layer_precision[i].of(half), to.layer_precision[i].of(half));
    }
  }
  add(Component::kEmbeddings, from.embeddings, to.embeddings);
  return bytes / copy_bytes_per_s;
}

std::vector<Course> MorphPolicy::ways_down(const Situation& now) const {
  const FormTraits from = traits_of(now.committed);
  const double loss = traits_of(now.heading).kl_nats;
  std::vector<Course> ways;
  for (const Candidate& to : candidates_) {
    if (to.traits.kl_nats > loss && above_floor(bounds_, to.form)) {
      ways.push_back({from, to.traits, seconds(now.committed, to.form, now.copy_bytes_per_s)});
    }
  }
  return ways;
}

double MorphPolicy::cost(const Prediction& prediction) const {
  return late(prediction) + options_.late_per_nat * prediction.kl_nats;
}

MorphPolicy::Considered MorphPolicy::consider(const Candidate& to, const View& view,
                                              bool lowers) const {
  const auto& [speed, load, now, committed] = view;
  Considered considered{.candidate = to,
                        .seconds = seconds(now.committed, to.form, now.copy_bytes_per_s),
                        .seconds_back = seconds(to.form, now.heading, now.copy_bytes_per_s)};
  const Course course{.from = committed, .to = to.traits, .seconds = considered.seconds};
  considered.present = predict(speed, serving_, course, load);
  Load most = load;
  most.arrivals.per_s = load.arrivals.most_per_s;
  if (!lowers) {
    most.arrivals.per_s *= 1 + kAccuracy;
    most.arrivals.lasts_s = kHorizonS;
  }
  considered.most = predict(speed, serving_, course, most);
  // The longest sequence goes on until KV could be larger again.
  const double step_s =
      speed.step_s(to.traits.precision, {std::max(1.0, load.decoding), load.context_tokens, 0});
  const double steps = 1 + (considered.seconds + considered.seconds_back) / std::max(step_s, 1e-4);
  const double longest = load.largest_tokens + std::min(load.largest_left_tokens, steps);
  considered.serves =
      to.traits.kv_blocks * serving_.block_tokens >= longest && above_floor(bounds_, to.form);
  return considered;
}

// Leaves components alone whose swap failed lately, and those whose variant is not packed yet.
MorphPolicy::Candidate MorphPolicy::within_reach(const Candidate& to, const Situation& now) const {
  Form form = to.form;
  for (const SwapComponent& swap : now.failed) {
    if (precision_of(form, swap.layer, swap.component) !=
        precision_of(now.heading, swap.layer, swap.component)) {
      precision_of(form, swap.layer, swap.component) =
          precision_of(now.committed, swap.layer, swap.component);
    }
  }
  for (const SwapComponent& swap : now.missing) {
    const Precision before = precision_of(now.committed, swap.layer, swap.component);
    Precision& after = precision_of(form, swap.layer, swap.component);
    if (after.weights == swap.to.weights && weight_bits(after) < weight_bits(before)) {
      after = before;
    }
  }
  return form == to.form ? to : candidate_of(with_fitting_kv(bounds_, std::move(form)));
}

// Returns true if a form has more KV, or if KV on the way to it always holds what is needed.
// Without free pages, KV lends some to the last swaps of a way up.
bool MorphPolicy::kv_suffices(const Form& to, const Situation& now) const {
  if (to.kv.blocks >= now.heading.kv.blocks) {
    return true;
  }
  const Result<Morph> way = plan_with_or_without_embeddings(now.committed, to, bounds_, {});
  return way.ok() && least_kv_blocks(now.committed, *way) >= now.needed_blocks;
}

// Returns true if it is better to go to a form than to stay. `stay` was considered like `to`.
bool MorphPolicy::pays(const Considered& to, const Considered& stay, const View& view) const {
  const Situation& now = view.now;
  const auto is_better = [&] {
    if (!stay.serves) {
      return true;
    }
    if (to.candidate.traits.kl_nats > stay.candidate.traits.kl_nats) {
      const double before = cost(stay.present);
      return cost(to.present) < before - std::max(kLeastLate, kAccuracy * before);
    }
    return kQualityStep * to.candidate.traits.kl_nats <= stay.candidate.traits.kl_nats &&
           late(to.most) < late(stay.most) + kLeastLate &&
           std::min(now.kept_s, view.load.arrivals.lasts_s) >= to.seconds + to.seconds_back;
  };
  return to.serves && is_better() && kv_suffices(to.candidate.form, now);
}

Decision MorphPolicy::decide(const StepSpeed& speed, const Load& load, const Situation& now) const {
  const View view{speed, load, now, candidate_of(now.committed).traits};
  const Candidate heading = candidate_of(now.heading);
  const Considered stay = consider(heading, view, true);
  Decision decision{.wanted = std::nullopt,
                    .predictions = {shown(now.heading, stay.present, stay.most)}};
  if (heading.traits.kl_nats <= 0 && cost(stay.present) < kLeastLate && stay.serves) {
    return decision;
  }
  const Considered stay_for_long = consider(heading, view, false);
  std::optional<Considered> best;
  const auto is_better = [&](const Considered& to, bool lowers) {
    return !best ||
           (lowers || !stay.serves ? cost(to.most) < cost(best->most)
                                   : to.candidate.traits.kl_nats < best->candidate.traits.kl_nats);
  };
  for (const Candidate& candidate : candidates_) {
    const bool all = now.failed.empty() && now.missing.empty();
    const Candidate form = all ? candidate : within_reach(candidate, now);
    if (form.form == now.heading) {
      continue;  // it was considered already; forms out of reach can leave several such
    }
    const bool lowers = form.traits.kl_nats > heading.traits.kl_nats;
    const Considered to = consider(form, view, lowers);
    decision.predictions.push_back(shown(to.candidate.form, to.present, to.most));
    if (pays(to, lowers ? stay : stay_for_long, view) && is_better(to, lowers)) {
      best = to;
    }
  }
  if (best && best->candidate.form != now.heading) {
    const bool lowers = best->candidate.traits.kl_nats > heading.traits.kl_nats;
    const std::string reason =
        stay.serves ? reason_for(best->candidate.form, lowers ? stay.present : stay_for_long.most,
                                 lowers ? best->present : best->most)
        : above_floor(bounds_, now.heading)
            ? fmt::format("the longest request needs more than {} KV blocks", now.heading.kv.blocks)
            : fmt::format("{} is below the quality floor", precision_label(now.heading));
    decision.wanted = Wanted{best->candidate.form, reason, stay.present.by_kv, lowers};
  }
  return decision;
}

std::optional<Wanted> MorphPolicy::decide(const PaperRule& rule, const Situation& now) const {
  const auto same = std::find_if(path_.begin(), path_.end(), [&](const Form& form) {
    return equally_precise(form, now.heading);
  });
  const auto at =
      same == path_.end() ? std::size_t{0} : static_cast<std::size_t>(same - path_.begin());
  const std::size_t step = !bounds_.order.empty() && bounds_.order.front().half ? 2 : 1;
  const std::size_t to =
      rule.next(at, path_.size(), step, path_[at - std::min(step, at)].kv.blocks);
  if (path_[to] == now.heading || !kv_suffices(path_[to], now) ||
      (!now.missing.empty() && within_reach(candidate_of(path_[to]), now).form != path_[to])) {
    return std::nullopt;
  }
  return Wanted{path_[to],
                to > at ? "over the paper's thresholds" : "under the paper's thresholds"};
}

}  // namespace protean
