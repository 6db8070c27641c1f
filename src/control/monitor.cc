#include "control/monitor.h"

#include <algorithm>
#include <cmath>

namespace protean {
namespace {

constexpr TimeNs kLatencyWindowNs = 15 * kNsPerS;
constexpr TimeNs kTrendNs = kNsPerS;
// Counts of arrivals scatter by their square root; what is watched all the time has to be several
// of these away before it is more than chance.
constexpr double kDeviations = 4;

double demand(const LoadSample& sample) {
  return static_cast<double>(sample.kv_blocks_used + sample.blocks_wanted);
}

}  // namespace

Monitor::Monitor(const PolicyOptions& options)
    : options_(options),
      pressed_(options.entry_window_ns),
      queued_(options.entry_window_ns),
      forecast_(options.entry_window_ns),
      demand_(options.entry_window_ns),
      full_steps_(options.entry_window_ns),
      long_wait_(options.release_window_ns),
      waiting_(options.release_window_ns),
      busy_(options.release_window_ns),
      preemptions_(options.release_window_ns),
      loads_{Load(options.release_window_ns), Load(2 * options.release_window_ns),
             Load(4 * options.release_window_ns)},
      demand_trend_(kTrendNs),
      arrivals_trend_(kTrendNs),
      ttft_(kLatencyWindowNs),
      tpot_(kLatencyWindowNs) {}

bool Monitor::waits_long(const LoadSample& sample) const {
  return sample.waiting > 0 && sample.oldest_wait_ns >= options_.queue_delay_ns;
}

bool Monitor::pressed(const LoadSample& sample) const {
  const std::int64_t free = sample.kv_blocks - sample.kv_blocks_used;
  const bool short_of_blocks =
      sample.blocks_wanted > free || static_cast<double>(sample.kv_blocks_used) >=
                                         options_.kv_high * static_cast<double>(sample.kv_blocks);
  return short_of_blocks && waits_long(sample);
}

bool Monitor::onset_is_remembered(TimeNs now_ns) const {
  return last_pressure_ns_ >= 0 && now_ns - last_pressure_ns_ <= options_.load_memory_ns;
}

double Monitor::share_of_onset(const Load& load, TimeNs now_ns) const {
  const auto share = [](double now, double then) { return then > 0 ? now / then : 0.0; };
  return std::max(share(load.arrivals.per_s(now_ns), onset_.arrivals_per_s),
                  share(load.tokens.per_s(now_ns), onset_.tokens_per_s));
}

bool Monitor::fell(const Load& load, TimeNs now_ns) const {
  if (now_ns - onset_.at_ns < load.arrivals.window_ns()) {
    return false;  // in part it is of the time before
  }
  const double expected = onset_.arrivals_per_s * load.arrivals.window_s();
  const double chance = kDeviations / std::sqrt(std::max(expected, 1.0));
  return share_of_onset(load, now_ns) <= std::min(options_.release_load, std::max(0.0, 1 - chance));
}

void Monitor::sample(const LoadSample& sample) {
  const TimeNs now_ns = sample.at_ns;
  const bool is_pressed = pressed(sample);
  in_a_row_ = is_pressed ? InARow{.pressed = in_a_row_.pressed + 1}
                         : InARow{.relaxed = in_a_row_.relaxed + 1};

  pressed_.set(now_ns, is_pressed ? 1 : 0);
  queued_.set(now_ns, options_.queue.alone_ns > 0 && sample.waiting > 0 &&
                              sample.oldest_wait_ns >= options_.queue.alone_ns
                          ? 1
                          : 0);
  demand_.set(now_ns, demand(sample));
  full_steps_.set(now_ns, sample.step_full ? 1 : 0);
  // Prompts that come together wait for each other in any form.
  const TimeNs long_ns = std::max(options_.queue_delay_ns, options_.queue.alone_ns);
  long_wait_.set(now_ns, sample.waiting > 0 && sample.oldest_wait_ns >= long_ns ? 1 : 0);
  waiting_.set(now_ns, sample.waiting);
  busy_.set(now_ns, sample.running > 0 ? 1 : 0);
  preemptions_.add(now_ns, sample.preemptions_total - last_.preemptions_total);
  for (Load& load : loads_) {
    load.arrivals.add(now_ns, sample.arrivals_total - last_.arrivals_total);
    load.tokens.add(now_ns, sample.arrived_tokens_total - last_.arrived_tokens_total);
  }
  const Load& load = loads_.front();

  demand_trend_.add(now_ns, demand(sample));
  arrivals_trend_.add(now_ns, load.tokens.per_s(now_ns));
  const bool foreseen =
      options_.forecast_ns > 0 &&
      demand_trend_.after(options_.forecast_ns) > static_cast<double>(sample.kv_blocks) &&
      arrivals_trend_.after(options_.forecast_ns) >= arrivals_trend_.level();
  forecast_.set(now_ns, foreseen ? 1 : 0);

  const bool under_pressure = std::max({pressed_.mean(now_ns), queued_.mean(now_ns),
                                        forecast_.mean(now_ns)}) >= options_.entry_share;
  // What comes back soon is the same pressure.
  const TimeNs window_ns = load.arrivals.window_ns();
  if (under_pressure && (last_pressure_ns_ < 0 || now_ns - last_pressure_ns_ > window_ns)) {
    onset_ = {.at_ns = now_ns};
  }
  // Pressure begins before the load that causes it fills the window.
  if (onset_.at_ns >= 0 && now_ns - onset_.at_ns <= window_ns) {
    onset_.arrivals_per_s = std::max(onset_.arrivals_per_s, load.arrivals.per_s(now_ns));
    onset_.tokens_per_s = std::max(onset_.tokens_per_s, load.tokens.per_s(now_ns));
  }
  if (under_pressure) {
    last_pressure_ns_ = now_ns;
  }
  last_ = sample;
}

Signals Monitor::signals(TimeNs now_ns) const {
  const bool remembered = onset_is_remembered(now_ns);
  return {
      .at_ns = now_ns,
      .now = last_,
      .pressed_share = pressed_.mean(now_ns),
      .queued_share = queued_.mean(now_ns),
      .forecast_share = forecast_.mean(now_ns),
      .demand_max = demand_.max(now_ns),
      .full_step_share = full_steps_.mean(now_ns),
      .pressed_samples = in_a_row_.pressed,
      .relaxed_samples = in_a_row_.relaxed,
      .long_wait_share = long_wait_.mean(now_ns),
      .waiting_mean = waiting_.mean(now_ns),
      .busy_share = busy_.mean(now_ns),
      .preemptions = static_cast<std::int64_t>(preemptions_.total(now_ns)),
      .load_share = remembered ? share_of_onset(loads_.front(), now_ns) : 0.0,
      .load_fell = !remembered || std::any_of(loads_.begin(), loads_.end(),
                                              [&](const Load& load) { return fell(load, now_ns); }),
      .demand_grows = demand_trend_.after(options_.entry_window_ns) > demand_trend_.level(),
      .demand_foreseen = demand_trend_.after(options_.forecast_ns > 0 ? options_.forecast_ns
                                                                      : options_.entry_window_ns)};
}

}  // namespace protean
