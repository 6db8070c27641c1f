#include "server/operators/timeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace protean {
namespace {

constexpr double kClassWidth = 1.1;
constexpr double kLeastNs = 1e4;
constexpr std::size_t kClasses = 200;  // up to half an hour

std::size_t class_of(TimeNs duration_ns) {
  const double steps =
      std::log(static_cast<double>(duration_ns) / kLeastNs) / std::log(kClassWidth);
  return std::isfinite(steps) && steps > 0 ? std::min(static_cast<std::size_t>(steps), kClasses - 1)
                                           : 0;
}

}  // namespace

void DurationCounts::widen(std::size_t first, std::size_t last) {
  if (counts_.empty()) {
    first_ = first;
  }
  if (first < first_) {
    counts_.insert(counts_.begin(), first_ - first, 0);
    first_ = first;
  }
  counts_.resize(std::max(counts_.size(), last + 1 - first_));
}

void DurationCounts::add(TimeNs duration_ns) {
  const std::size_t at = class_of(duration_ns);
  widen(at, at);
  ++counts_[at - first_];
}

void DurationCounts::add(const DurationCounts& more) {
  if (more.empty()) {
    return;
  }
  widen(more.first_, more.first_ + more.counts_.size() - 1);
  for (std::size_t i = 0; i < more.counts_.size(); ++i) {
    counts_[more.first_ - first_ + i] += more.counts_[i];
  }
}

TimeNs DurationCounts::quantile(double q) const {
  double all = 0;
  for (const std::uint32_t count : counts_) {
    all += count;
  }
  double seen = 0;
  std::size_t at = 0;
  while (at + 1 < counts_.size() && (seen += counts_[at]) < q * all) {
    ++at;
  }
  return std::llround(kLeastNs * std::pow(kClassWidth, static_cast<double>(first_ + at) + 0.5));
}

void ReplicaSlot::see(const Observation& seen) {
  running = std::max(running, seen.running);
  waiting = std::max(waiting, seen.waiting);
  kv_blocks_used = std::max(kv_blocks_used, seen.kv_blocks_used);
  kv_blocks = seen.kv_blocks;
}

void ReplicaSlot::add(const ReplicaSlot& next) {
  serves = next.serves;
  running = std::max(running, next.running);
  waiting = std::max(waiting, next.waiting);
  kv_blocks_used = std::max(kv_blocks_used, next.kv_blocks_used);
  kv_blocks = next.kv_blocks;
  output_tokens += next.output_tokens;
}

void TimelineSlot::add(const TimelineSlot& next) {
  running = std::max(running, next.running);
  waiting = std::max(waiting, next.waiting);
  kv_blocks_used = std::max(kv_blocks_used, next.kv_blocks_used);
  kv_blocks = next.kv_blocks;
  prompt_tokens += next.prompt_tokens;
  preemptions += next.preemptions;
  layers = next.layers;
  for (std::size_t i = 0; i < output_tokens.size(); ++i) {
    output_tokens[i] += next.output_tokens[i];
  }
  ttft.add(next.ttft);
  token_time.add(next.token_time);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    replicas[i].add(next.replicas[i]);
  }
}

void Timeline::add(const TimelineSlot& slot) {
  const TimeNs begin_ns = begin_of(slot.begin_ns);
  if (!slots_.empty() && slots_.back().begin_ns == begin_ns) {
    slots_.back().add(slot);
    return;
  }
  slots_.push_back(slot);
  slots_.back().begin_ns = begin_ns;
  if (slots_.size() <= most_) {
    return;
  }
  if (when_full_ == WhenFull::kDropOldest) {
    slots_.pop_front();
    return;
  }
  slot_ns_ *= 2;
  std::deque<TimelineSlot> joined;
  for (TimelineSlot& each : slots_) {
    each.begin_ns = begin_of(each.begin_ns);
    if (!joined.empty() && joined.back().begin_ns == each.begin_ns) {
      joined.back().add(each);
    } else {
      joined.push_back(std::move(each));
    }
  }
  slots_ = std::move(joined);
}

// Opens a slot, which begins with what was seen last.
TimelineSlot& TimelineGatherer::open(TimeNs at_ns) {
  if (!slot_) {
    slot_ = TimelineSlot{.begin_ns = at_ns - at_ns % slot_ns_, .layers = mean_layers()};
    if (replicas_.size() > 1) {
      slot_->replicas.resize(replicas_.size());
    }
    see(*slot_);
  }
  return *slot_;
}

// Lets the slot see the fleet as it is now.
void TimelineGatherer::see(TimelineSlot& slot) const {
  ReplicaSlot sum;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    const auto& [last, layers, all_layers, serves] = replicas_[i];
    if (serves) {
      sum.running += last.running;
      sum.waiting += last.waiting;
      sum.kv_blocks_used += last.kv_blocks_used;
      sum.kv_blocks += last.kv_blocks;
    }
    if (!slot.replicas.empty()) {
      slot.replicas[i].serves = serves;
      slot.replicas[i].see(last);
    }
  }
  slot.running = std::max(slot.running, sum.running);
  slot.waiting = std::max(slot.waiting, sum.waiting);
  slot.kv_blocks_used = std::max(slot.kv_blocks_used, sum.kv_blocks_used);
  slot.kv_blocks = sum.kv_blocks;
}

void TimelineGatherer::engine(ReplicaId replica, const Observation& seen, TimeNs at_ns) {
  TimelineSlot& slot = open(at_ns);
  const auto number = static_cast<std::size_t>(replica.value);
  Replica& from = replicas_[number];
  slot.prompt_tokens += seen.prompt_tokens_total - from.last.prompt_tokens_total;
  slot.preemptions += seen.preemptions_total - from.last.preemptions_total;
  const std::int64_t tokens = seen.output_tokens_total - from.last.output_tokens_total;
  for (std::size_t i = 0; from.all_layers > 0 && i < from.layers.size(); ++i) {
    slot.output_tokens[i] += static_cast<double>(tokens) * from.layers[i] / from.all_layers;
  }
  if (!slot.replicas.empty()) {
    slot.replicas[number].output_tokens += tokens;
  }
  slot.layers = mean_layers();
  from.last = seen;
  see(slot);
}

void TimelineGatherer::form(ReplicaId replica, const Form& form) {
  Replica& of = replicas_[static_cast<std::size_t>(replica.value)];
  of.all_layers = static_cast<double>(form.layer_precision.size());
  for (std::size_t i = 0; i < of.layers.size(); ++i) {
    of.layers[i] = layers_at(form, kPrecisions[i]);
  }
  if (slot_) {
    slot_->layers = mean_layers();
  }
}

void TimelineGatherer::serving(const std::vector<ReplicaId>& by) {
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    replicas_[i].serves = static_cast<std::size_t>(by[i].value) == i;
  }
  if (slot_) {
    slot_->layers = mean_layers();
    see(*slot_);
  }
}

// Returns the layers by precision of a replica that serves, as the mean of all of them.
TimelineGatherer::ByPrecision TimelineGatherer::mean_layers() const {
  ByPrecision sum{};
  double count = 0;
  for (const Replica& replica : replicas_) {
    if (replica.serves) {
      count += 1;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += replica.layers[i];
      }
    }
  }
  for (double& layers : sum) {
    layers /= std::max(count, 1.0);
  }
  return sum;
}

std::optional<TimelineSlot> TimelineGatherer::finished(TimeNs now_ns) {
  if (!slot_ || now_ns < slot_->begin_ns + slot_ns_) {
    return std::nullopt;
  }
  return std::exchange(slot_, std::nullopt);
}

std::optional<TimeNs> TimelineGatherer::ends_ns() const {
  return slot_ ? std::optional(slot_->begin_ns + slot_ns_) : std::nullopt;
}

}  // namespace protean
