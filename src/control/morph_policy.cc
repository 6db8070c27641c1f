#include "control/morph_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace protean {
namespace {

double seconds(TimeNs ns) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerS);
}

double blocks_of(const Form& form) {
  return static_cast<double>(form.kv.blocks);
}

// Blocks used and wanted, now or soon.
double demand_of(const Signals& signals) {
  const LoadSample& now = signals.now;
  return std::max(static_cast<double>(now.kv_blocks_used + now.blocks_wanted),
                  signals.demand_foreseen);
}

// The first form from `from` on in which the demand takes at most this share of the blocks, or the
// last there is.
std::size_t first_with_room(const std::vector<Form>& path, std::size_t from, double demand,
                            double share) {
  std::size_t at = from;
  while (at + 1 < path.size() && demand > share * blocks_of(path[at])) {
    ++at;
  }
  return at;
}

// The first form in which no half is as precise as in the first, or the last there is.
std::size_t rung_end(const std::vector<Form>& path) {
  const Precision highest = highest_precision(path.front());
  const auto end = std::find_if(path.begin(), path.end(),
                                [&](const Form& form) { return layers_at(form, highest) == 0; });
  return static_cast<std::size_t>(end - path.begin()) - (end == path.end() ? 1 : 0);
}

std::string load_of(const LoadSample& now) {
  return fmt::format(
      "KV {} of {} blocks used, {} wanted, {} waiting for up to {:.0f} ms, newcomers for {:.0f} ms",
      now.kv_blocks_used, now.kv_blocks, now.blocks_wanted, now.waiting,
      1e3 * seconds(now.oldest_wait_ns), 1e3 * seconds(now.expected_wait_ns));
}

}  // namespace

MorphPolicy::MorphPolicy(const PolicyOptions& options, const FormBounds& bounds)
    : options_(options),
      bounds_(bounds),
      path_(form_path(bounds, options.lowest, options.lowest_share)),
      first_rung_end_(rung_end(path_)) {}

// Where on the path a form is; of one beside it, the first whose weights take no more.
MorphPolicy::Place MorphPolicy::place_of(const Form& form) const {
  const auto same = std::find_if(path_.begin(), path_.end(), [&](const Form& on_path) {
    return equally_precise(on_path, form);
  });
  if (same != path_.end()) {
    return {.at = static_cast<std::size_t>(same - path_.begin())};
  }
  const std::int64_t page_bytes = bounds_.budget.page_bytes;
  const std::int64_t pages = weight_pages(bounds_.spec, form, page_bytes);
  const auto smaller = std::find_if(path_.begin(), path_.end(), [&](const Form& on_path) {
    return weight_pages(bounds_.spec, on_path, page_bytes) <= pages;
  });
  const std::size_t last = path_.size() - 1;
  return {.at = std::min(static_cast<std::size_t>(smaller - path_.begin()), last), .beside = true};
}

std::optional<Wanted> MorphPolicy::decide(const Signals& signals, const Form& current) const {
  const auto [at, beside] = place_of(current);
  if (options_.rule == MorphRule::kPaper) {
    return paper_rule(signals, at);
  }
  // What is already on its way is not asked for again; a shrinking cache may be called off.
  if (signals.now.kv_blocks >= current.kv.blocks) {
    // From beside the path to it.
    if (auto wanted = lower(signals, beside && at > 0 ? at - 1 : at)) {
      return wanted;
    }
  }
  return signals.now.kv_blocks == current.kv.blocks ? raise(signals, at) : std::nullopt;
}

std::optional<Wanted> MorphPolicy::lower(const Signals& signals, std::size_t at) const {
  const LoadSample& now = signals.now;
  const QueueOptions& queue = options_.queue;
  const bool beyond = is_beyond(at);
  const bool waits_long = now.waiting > 0 && now.oldest_wait_ns >= long_wait_ns(signals, at);
  // More blocks do not make steps larger that are full.
  const bool blocks_help = queue.beyond_alone || signals.full_step_share < queue.full_steps;
  const bool pressed = signals.pressed_share >= options_.entry_share &&
                       signals.pressed_samples >= options_.entry_samples &&
                       ((waits_long && blocks_help) || !beyond);
  const bool long_queue = signals.queued_share >= options_.entry_share && waits_long;
  const bool queued = beyond                  ? queue.beyond_alone && long_queue
                      : queue.expected_ns > 0 ? is_late(signals)
                                              : long_queue;
  const bool foreseen = signals.forecast_share >= options_.entry_share && (blocks_help || !beyond);
  if ((!pressed && !queued && !foreseen) || at + 1 == path_.size()) {
    return std::nullopt;
  }
  const auto steps = [&](double share) {
    const auto whole_way = static_cast<double>(path_.size() - 1);
    return std::max<std::size_t>(static_cast<std::size_t>(std::ceil(share * whole_way)), 1);
  };
  const std::size_t last = path_.size() - 1;
  std::size_t nearest = at + steps(options_.shortest_step);
  std::size_t farthest = at + steps(options_.longest_step);
  if (queue.fewer_bits_are_faster) {
    const std::size_t next = beyond ? at + steps(queue.step) : first_rung_end_;
    nearest = queued ? std::max(nearest, next) : nearest;
    farthest = beyond || !blocks_help ? std::min(farthest, next) : farthest;
  }
  farthest = std::max(nearest, farthest);
  const std::size_t to =
      std::clamp(first_with_room(path_, at + 1, demand_of(signals), options_.fill_after_entry),
                 std::min(nearest, last), std::min(farthest, last));
  const std::string_view why = pressed  ? "blocks are short"
                               : queued ? "the queue is long"
                                        : "blocks will be short";
  return Wanted{path_[to], fmt::format("{}: {}", why, load_of(now)), aim_of(signals, queued)};
}

// Whoever runs may need another block before all is lowered.
MorphAim MorphPolicy::aim_of(const Signals& signals, bool queued) const {
  if (!queued || !options_.queue.fewer_bits_are_faster) {
    return {};
  }
  const auto needed = static_cast<std::int64_t>(std::ceil(demand_of(signals)));
  return {.faster_steps = true,
          .idle_blocks =
              std::max<std::int64_t>(signals.now.kv_blocks - signals.now.running - needed, 0)};
}

// A burst is seen by what it brings, sooner than by how long that has waited; a short queue, by its
// going on.
bool MorphPolicy::is_late(const Signals& signals) const {
  return signals.now.waiting > 0 && options_.queue.is_long(signals.expected_wait_ns) &&
         options_.queue.is_long(signals.now.expected_wait_ns);
}

// How much longer steps of the first form take, at most, whether they wait for weights or multiply:
// so much longer do sequences keep their blocks.
double MorphPolicy::slower_at_first(std::size_t at) const {
  const auto bytes = [this](const Form& form) {
    return static_cast<double>(weight_pages(bounds_.spec, form, bounds_.budget.page_bytes));
  };
  return bytes(path_.front()) / bytes(path_[at]);
}

// Where a queue is a matter of speed, and that is known.
bool MorphPolicy::first_form_carries(const Signals& signals) const {
  return options_.queue.fewer_bits_are_faster && signals.full_work_share > 0 &&
         signals.full_work_share <= options_.release_load;
}

// Where more blocks are only a part of what helps, and all have left the first precision.
bool MorphPolicy::is_beyond(std::size_t at) const {
  return options_.queue.fewer_bits_are_faster && at >= first_rung_end_;
}

// Where leaving the first precision costs next to nothing, what is below it takes a longer wait,
// and the longer the deeper. What waits while a queue is worked off came before this form.
TimeNs MorphPolicy::long_wait_ns(const Signals& signals, std::size_t at) const {
  if (!is_beyond(at)) {
    return options_.queue.alone_ns;
  }
  if (!signals.demand_grows) {
    return 2 * options_.queue.beyond_ns;
  }
  const auto done = static_cast<TimeNs>(at - first_rung_end_);
  const auto whole = static_cast<TimeNs>(path_.size() - first_rung_end_);
  return options_.queue.beyond_ns + options_.queue.beyond_ns * done / whole;
}

std::optional<Wanted> MorphPolicy::raise(const Signals& signals, std::size_t at) const {
  const LoadSample& now = signals.now;
  const bool quiet =
      signals.long_wait_share == 0 && signals.waiting_mean <= 0.5 && signals.preemptions == 0;
  const bool fell = signals.load_fell || signals.busy_share <= options_.release_busy;
  if (at == 0 || !quiet || !(fell || first_form_carries(signals))) {
    return std::nullopt;
  }
  const double demand = std::max({signals.demand_max, signals.demand_foreseen,
                                  fell ? 0.0 : slower_at_first(at) * signals.demand_lately});
  const std::size_t to = first_with_room(path_, 0, demand, options_.release_fill);
  if (to >= at) {
    return std::nullopt;
  }
  return Wanted{path_[to],
                fmt::format("pressure is over, load {:.0f} % of then: {}", 100 * signals.load_share,
                            load_of(now)),
                {.lends_to_embeddings = true}};
}

// One layer lower after so many pressed samples in a row, one higher after so many relaxed ones.
std::optional<Wanted> MorphPolicy::paper_rule(const Signals& signals, std::size_t at) const {
  const LoadSample& now = signals.now;
  const std::size_t step = !bounds_.order.empty() && bounds_.order.front().half ? 2 : 1;
  const double used = static_cast<double>(now.kv_blocks_used);
  if (signals.pressed_samples >= options_.entry_samples && at + 1 < path_.size()) {
    return Wanted{path_[std::min(at + step, path_.size() - 1)],
                  fmt::format("over thresholds: {}", load_of(now))};
  }
  if (signals.relaxed_samples >= options_.entry_samples && now.waiting == 0 && at > 0 &&
      used <= options_.kv_high * blocks_of(path_[at - std::min(step, at)])) {
    return Wanted{path_[at - std::min(step, at)],
                  fmt::format("under thresholds: {}", load_of(now))};
  }
  return std::nullopt;
}

}  // namespace protean
