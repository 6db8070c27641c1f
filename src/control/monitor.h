#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"
#include "control/load_sample.h"
#include "control/policy_options.h"
#include "control/rolling_window.h"
#include "control/trend.h"

namespace protean {

// What is known of a replica's load at one moment: now, over the entry window, over the release
// window. Plain values; the whole input of a decision besides the form.
struct Signals {
  TimeNs at_ns = 0;
  LoadSample now;

  // Of the entry window.
  double pressed_share = 0;     // of its time: blocks short and somebody waiting long
  double queued_share = 0;      // somebody waiting for queue.alone_ns
  TimeNs expected_wait_ns = 0;  // mean, 0 while nobody waits
  double forecast_share = 0;    // the demand foreseen to exceed all blocks
  double demand_max = 0;        // blocks used and wanted
  double full_step_share = 0;
  int pressed_samples = 0;  // the latest ones, all of them pressed
  int relaxed_samples = 0;  // the latest ones, none of them pressed

  // Of the release window.
  double long_wait_share = 0;  // of its time: somebody waiting long
  double waiting_mean = 0;
  double busy_share = 0;       // of its time: anything running
  double full_work_share = 0;  // of its time: what was computed in it would take the first form
  double demand_lately = 0;    // blocks used and wanted, at most
  std::int64_t preemptions = 0;
  double load_share = 0;  // of the load at which pressure began lately; 0 if it never did
  bool load_fell = true;  // below that, by more than chance

  bool demand_grows = false;
  double demand_foreseen = 0;  // blocks, an entry window or forecast_ns ahead
};

// The Serving Monitor (MorphServe section 4.1): rolling windows over what the engine sees, updated
// in constant time and never computed anew from history. Single-threaded; times must not go back.
class Monitor {
 public:
  explicit Monitor(const PolicyOptions& options);

  void sample(const LoadSample& sample);
  void first_token(TimeNs at_ns, TimeNs ttft_ns) { ttft_.add(at_ns, ttft_ns); }
  void token_time(TimeNs at_ns, TimeNs tpot_ns) { tpot_.add(at_ns, tpot_ns); }

  Signals signals(TimeNs now_ns) const;
  // Of the last 15 s. No part of a decision, and dearer than all that is.
  TimeNs ttft_p95_ns(TimeNs now_ns) const { return ttft_.quantile(now_ns, 0.95); }
  TimeNs tpot_p95_ns(TimeNs now_ns) const { return tpot_.quantile(now_ns, 0.95); }

 private:
  // What arrived within a window.
  struct Load {
    explicit Load(TimeNs window_ns) : arrivals(window_ns), tokens(window_ns) {}
    RollingCount arrivals;
    RollingCount tokens;
  };

  // Requests or prompt tokens of the window beside those of the onset, whichever fell less.
  double share_of_onset(const Load& load, TimeNs now_ns) const;
  bool fell(const Load& load, TimeNs now_ns) const;
  bool waits_long(const LoadSample& sample) const;
  bool still_waits_long(const LoadSample& sample) const;
  bool pressed(const LoadSample& sample) const;
  TimeNs expected_wait_ns(TimeNs now_ns) const;
  bool onset_is_remembered(TimeNs now_ns) const;

  PolicyOptions options_;
  LoadSample last_;
  struct InARow {  // the latest samples, all of one kind
    int pressed = 0;
    int relaxed = 0;
  } in_a_row_;

  struct Entry {
    explicit Entry(TimeNs window_ns);
    RollingWindow pressed;
    RollingWindow queued;
    RollingWindow expected_wait;
    RollingWindow forecast;
    RollingWindow demand;
    RollingWindow full_steps;
  } entry_;
  struct Release {
    explicit Release(TimeNs window_ns);
    RollingWindow long_wait;
    RollingWindow waiting;
    RollingWindow busy;
    RollingWindow demand;
    RollingCount full_work_ns;
    RollingCount preemptions;
  } release_;
  // Of the release window, and of ones twice and four times as long, for what falls little or
  // arrives seldom.
  std::array<Load, 3> loads_;
  Trend demand_trend_;
  Trend arrivals_trend_;
  RollingQuantile ttft_;
  RollingQuantile tpot_;

  TimeNs last_pressure_ns_ = -1;  // for an entry window
  struct Onset {                  // of it
    TimeNs at_ns = -1;
    double arrivals_per_s = 0;
    double tokens_per_s = 0;
  } onset_;
};

}  // namespace protean
