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

// A form, what a token loses in it, and what becomes of the load on the way to it.
struct Considered {
  Form form;
  double kl_nats = 0;
  double there_s = 0;
  double there_and_back_s = 0;
  bool above_floor = true;
  bool lasts = false;  // the outlook is of the most arrivals, a fifth more, for a minute
  Outlook outlook;
  std::string verdict;

  bool serves() const { return above_floor && outlook.serves; }
};

FormPrediction shown(const Considered& considered) {
  const Outlook& outlook = considered.outlook;
  return {.precision = precision_label(considered.form),
          .kv_blocks = considered.form.kv.blocks,
          .late = outlook.present.late,
          .late_most = outlook.most.late,
          .kv_short_blocks = outlook.most.kv_short_blocks,
          .answer_tokens_per_s = outlook.present.answer_tokens_per_s,
          .capacity_per_s = outlook.present.capacity_per_s,
          .kl_nats = outlook.present.kl_nats,
          .cost = outlook.cost,
          .cost_most = outlook.most_cost,
          .late_lasting = considered.lasts ? std::optional(outlook.late) : std::nullopt,
          .morph_s = considered.there_s,
          .verdict = considered.verdict};
}

std::string reason_for(const Form& form, const Prediction& before, const Prediction& after) {
  return fmt::format(
      "at {}, {:.1f} requests would be late and {:.2f} nats be lost; now {:.1f} and {:.2f}",
      precision_label(form), after.late, after.kl_nats, before.late, before.kl_nats);
}

// Returns why it is not better to go to a form than to stay, which has `lasted` if that is long
// enough for a way up; empty: it is better. Both were considered alike.
std::string reason_against(const Considered& to, const Considered& stay, bool lasted) {
  if (!to.above_floor) {
    return "below the quality floor";
  }
  if (!to.outlook.serves) {
    return "its KV cannot hold the longest request";
  }
  if (!stay.serves()) {
    return {};
  }
  if (to.kl_nats >= stay.kl_nats) {
    return pays(to.outlook, stay.outlook) ? "" : "does not save a request and a fifth of the cost";
  }
  if (kQualityStep * to.kl_nats > stay.kl_nats) {
    return "loses more than a tenth as much as the present form";
  }
  if (!no_later(to.outlook, stay.outlook)) {
    return "would make more requests late if the most arrivals lasted for a minute";
  }
  return lasted ? ""
                : fmt::format(
                      "form or load changed less than {:.1f} s ago, the time to get there and back",
                      to.there_and_back_s);
}

// Returns true if a form can be better than to stay: a lower one has to save a request.
bool can_improve(const Considered& stay, const Situation& now) {
  return !stay.serves() || stay.kl_nats > 0 || stay.outlook.cost > kLeastLate ||
         now.committed != now.heading;
}

// Returns the decision for one of the forms that were weighed, of which the first is to stay.
Decision decision_of(std::vector<Considered> weighed, const Considered& stay_for_long,
                     std::optional<std::size_t> down, std::optional<std::size_t> up) {
  const auto chosen = down ? down : up;
  const Considered& stay = weighed.front();
  Decision decision;
  if (chosen) {
    const Considered& best = weighed[*chosen];
    const std::string reason =
        !stay.above_floor ? fmt::format("{} is below the quality floor", precision_label(stay.form))
        : !stay.outlook.serves
            ? fmt::format("the longest request needs more than {} KV blocks", stay.form.kv.blocks)
        : down ? reason_for(best.form, stay.outlook.present, best.outlook.present)
               : reason_for(best.form, stay_for_long.outlook.most, best.outlook.most);
    decision.wanted =
        Wanted{best.form, reason, stay.outlook.present.by_kv, best.kl_nats > stay.kl_nats};
  }
  for (std::size_t i = 0; i < weighed.size(); ++i) {
    if (weighed[i].verdict.empty()) {
      weighed[i].verdict = i == chosen.value_or(0) ? "chosen"
                           : i == 0                ? "replaced by the chosen form"
                                                   : "would pay, but less than the chosen form";
    }
    decision.predictions.push_back(shown(weighed[i]));
  }
  decision.predictions.front().late_lasting = shown(stay_for_long).late_lasting;
  return decision;
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
  for (Form& form : forms_off_path(bounds, path_)) {
    candidates_.push_back(candidate_of(std::move(form)));
  }
  std::stable_sort(
      candidates_.begin(), candidates_.end(),
      [](const Candidate& a, const Candidate& b) { return a.traits.kl_nats < b.traits.kl_nats; });
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

Way MorphPolicy::way(const StepSpeed& speed, const Situation& now) const {
  const Way there{.speed = speed,
                  .serving = serving_,
                  .course = {.from = candidate_of(now.committed).traits, .to = {}},
                  .late_per_nat = options_.late_per_nat};
  return way_to(candidate_of(now.heading), there, now);
}

// Returns `way` with another end.
Way MorphPolicy::way_to(const Candidate& to, Way way, const Situation& now) const {
  way.course.to = to.traits;
  way.course.seconds = seconds(now.committed, to.form, now.copy_bytes_per_s);
  way.course.seconds_back = seconds(to.form, now.heading, now.copy_bytes_per_s);
  return way;
}

std::vector<Way> MorphPolicy::ways_down(const StepSpeed& speed, const Situation& now) const {
  const Way stay = way(speed, now);
  std::vector<Way> ways;
  for (const Candidate& to : candidates_) {
    if (to.traits.kl_nats > stay.course.to.kl_nats && above_floor(bounds_, to.form) &&
        kv_suffices(to, now)) {
      ways.push_back(way_to(to, stay, now));
    }
  }
  return ways;
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

// Returns true if a form loses more and has more KV, or if KV on the way to it always holds what is
// needed. Without free pages, KV lends some to the last swaps of a way up, and many to the
// embeddings if they alone are lowered.
bool MorphPolicy::kv_suffices(const Candidate& to, const Situation& now) const {
  const auto swaps_embeddings_of = [&to](const Form& from) {
    return to.form.layer_precision == from.layer_precision && to.form.embeddings != from.embeddings;
  };
  const bool embeddings_alone =
      swaps_embeddings_of(path_.front()) || swaps_embeddings_of(now.committed);
  if (to.form.kv.blocks >= now.heading.kv.blocks && !embeddings_alone &&
      to.traits.kl_nats >= kl_nats(options_.loss, bounds_, now.heading)) {
    return true;
  }
  const Result<Morph> way = embeddings_alone
                                ? plan_morph(now.committed, to.form, bounds_)
                                : plan_with_or_without_embeddings(now.committed, to.form, bounds_);
  return way.ok() && least_kv_blocks(now.committed, *way) >= now.needed_blocks;
}

Decision MorphPolicy::weigh(const StepSpeed& speed, const Load& load, const Situation& now,
                            bool all) const {
  const Way present = way(speed, now);
  const auto consider = [&](const Candidate& to, bool lasts) {
    const Way there = way_to(to, present, now);
    return Considered{.form = to.form,
                      .kl_nats = to.traits.kl_nats,
                      .there_s = there.course.seconds,
                      .there_and_back_s = there.course.seconds + there.course.seconds_back,
                      .above_floor = above_floor(bounds_, to.form),
                      .lasts = lasts,
                      .outlook = outlook_of(there, load, lasts),
                      .verdict = {}};
  };
  const Candidate heading = candidate_of(now.heading);
  std::vector<Considered> weighed = {consider(heading, false)};
  const Considered stay = weighed.front();
  if (!all && !can_improve(stay, now)) {
    return {};
  }
  const Considered stay_for_long = stay.kl_nats > 0 ? consider(heading, true) : stay;
  std::optional<std::size_t> down;   // the best form for the present load
  std::optional<std::size_t> up;     // the most precise form that serves as well
  std::optional<Considered> up_now;  // at the present load, against which lower forms have to pay
  for (const Candidate& candidate : candidates_) {
    const bool all_in_reach = now.failed.empty() && now.missing.empty();
    const Candidate reached = all_in_reach ? candidate : within_reach(candidate, now);
    if (reached.form == now.heading) {
      continue;  // it was considered already; forms out of reach can leave several such
    }
    const bool lasts = stay.serves() && reached.traits.kl_nats < stay.kl_nats;
    Considered& to = weighed.emplace_back(consider(reached, lasts));
    to.verdict = stay.serves() && !lasts && to.form.kv.blocks < stay.form.kv.blocks
                     ? "loses more and has less KV than the present form"
                     : reason_against(to, lasts ? stay_for_long : up_now.value_or(stay),
                                      has_lasted(now.kept_s, load, to.there_and_back_s));
    std::optional<std::size_t>& best = lasts ? up : down;
    const bool beats_best =
        !best || (lasts ? to.kl_nats < weighed[*best].kl_nats
                        : to.outlook.most_cost < weighed[*best].outlook.most_cost);
    if (!to.verdict.empty() || !beats_best) {
      continue;
    }
    const Considered at_present = lasts ? consider(reached, false) : to;
    if (!kv_suffices(reached, now)) {
      to.verdict = "KV in use would not fit during the morph";
    } else if (lasts && pays(stay.outlook, at_present.outlook)) {
      to.verdict = "would be left again at once";
    } else {
      best = weighed.size() - 1;
      if (lasts) {
        up_now = at_present;
      }
    }
  }
  if (up && down && !pays(weighed[*down].outlook, stay.outlook)) {
    // The lower form is better than the more precise one and not than this, which lies between.
    weighed[*up].verdict = weighed[*down].verdict = "would be left again at once";
    up = down = std::nullopt;
  }
  return decision_of(std::move(weighed), stay_for_long, down, up);
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
  if (path_[to] == now.heading || !kv_suffices(candidate_of(path_[to]), now) ||
      (!now.missing.empty() && within_reach(candidate_of(path_[to]), now).form != path_[to])) {
    return std::nullopt;
  }
  return Wanted{path_[to], to > at ? "over the paper's thresholds" : "under the paper's thresholds",
                true};
}

}  // namespace protean
