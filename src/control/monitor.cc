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

Monitor::Entry::Entry(TimeNs window_ns)
    : pressed(window_ns),
      queued(window_ns),
      expected_wait(window_ns),
      forecast(window_ns),
      demand(window_ns),
      full_steps(window_ns) {}

Monitor::Release::Release(TimeNs window_ns)
    : long_wait(window_ns),
      waiting(window_ns),
      busy(window_ns),
      demand(window_ns),
      full_work_ns(window_ns),
      preemptions(window_ns) {}

Monitor::Monitor(const PolicyOptions& options)
    : options_(options),
      entry_(options.entry_window_ns),
      release_(options.release_window_ns),
      loads_{Load(options.release_window_ns), Load(2 * options.release_window_ns),
             Load(4 * options.release_window_ns)},
      demand_trend_(kTrendNs),
      arrivals_trend_(kTrendNs),
      ttft_(kLatencyWindowNs),
      tpot_(kLatencyWindowNs) {}

bool Monitor::waits_long(const LoadSample& sample) const {
  return sample.waiting > 0 && sample.oldest_wait_ns >= options_.queue_delay_ns;
}

// Prompts that come together wait for each other in any form.
bool Monitor::still_waits_long(const LoadSample& sample) const {
  const QueueOptions& queue = options_.queue;
  const TimeNs long_ns = std::max({options_.queue_delay_ns, queue.alone_ns, queue.expected_ns / 2});
  return queue.is_long(sample.expected_wait_ns) ||
         (sample.waiting > 0 && sample.oldest_wait_ns >= long_ns);
}

bool Monitor::pressed(const LoadSample& sample) const {
  const std::int64_t free = sample.kv_blocks - sample.kv_blocks_used;
  const bool short_of_blocks =
      sample.blocks_wanted > free || static_cast<double>(sample.kv_blocks_used) >=
                                         options_.kv_high * static_cast<double>(sample.kv_blocks);
  return short_of_blocks && waits_long(sample);
}

TimeNs Monitor::expected_wait_ns(TimeNs now_ns) const {
  return std::llround(entry_.expected_wait.mean(now_ns));
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

  entry_.pressed.set(now_ns, is_pressed ? 1 : 0);
  entry_.queued.set(now_ns, options_.queue.alone_ns > 0 && sample.waiting > 0 &&
                                    sample.oldest_wait_ns >= options_.queue.alone_ns
                                ? 1
                                : 0);
  entry_.expected_wait.set(now_ns,
                           sample.waiting > 0 ? static_cast<double>(sample.expected_wait_ns) : 0);
  entry_.demand.set(now_ns, demand(sample));
  release_.demand.set(now_ns, demand(sample));
  release_.full_work_ns.add(now_ns, sample.full_work_ns_total - last_.full_work_ns_total);
  entry_.full_steps.set(now_ns, sample.step_full ? 1 : 0);
  release_.long_wait.set(now_ns, still_waits_long(sample) ? 1 : 0);
  release_.waiting.set(now_ns, sample.waiting);
  release_.busy.set(now_ns, sample.running > 0 ? 1 : 0);
  release_.preemptions.add(now_ns, sample.preemptions_total - last_.preemptions_total);
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
  entry_.forecast.set(now_ns, foreseen ? 1 : 0);

  const bool queued = options_.queue.expected_ns > 0
                          ? options_.queue.is_long(expected_wait_ns(now_ns))
                          : entry_.queued.mean(now_ns) >= options_.entry_share;
  const bool under_pressure =
      queued ||
      std::max(entry_.pressed.mean(now_ns), entry_.forecast.mean(now_ns)) >= options_.entry_share;
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
      .pressed_share = entry_.pressed.mean(now_ns),
      .queued_share = entry_.queued.mean(now_ns),
      .expected_wait_ns = expected_wait_ns(now_ns),
      .forecast_share = entry_.forecast.mean(now_ns),
      .demand_max = entry_.demand.max(now_ns),
      .full_step_share = entry_.full_steps.mean(now_ns),
      .pressed_samples = in_a_row_.pressed,
      .relaxed_samples = in_a_row_.relaxed,
      .long_wait_share = release_.long_wait.mean(now_ns),
      .waiting_mean = release_.waiting.mean(now_ns),
      .busy_share = release_.busy.mean(now_ns),
      .full_work_share = release_.full_work_ns.per_s(now_ns) / kNsPerS,
      .demand_lately = release_.demand.max(now_ns),
      .preemptions = static_cast<std::int64_t>(release_.preemptions.total(now_ns)),
      .load_share = remembered ? share_of_onset(loads_.front(), now_ns) : 0.0,
      .load_fell = !remembered || std::any_of(loads_.begin(), loads_.end(),
                                              [&](const Load& load) { return fell(load, now_ns); }),
      .demand_grows = demand_trend_.after(options_.entry_window_ns) > demand_trend_.level(),
      .demand_foreseen = demand_trend_.after(options_.forecast_ns > 0 ? options_.forecast_ns
                                                                      : options_.entry_window_ns)};
}

}  // namespace protean
