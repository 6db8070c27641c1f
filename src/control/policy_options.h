#pragma once

#include "base/units.h"
#include "contract/morph.h"

namespace protean {

enum class MorphRule {
  kSteady,  // enters on shares of a window, leaves on quiet and on a load that has fallen
  kPaper,   // threshold and short persistence, both ways (MorphServe sections 4.1 and 6)
};

// When a queue is a reason although blocks are free.
struct QueueOptions {
  TimeNs alone_ns = 0;  // one that waits so long; 0: never
  // Instead, to leave the first precision: one behind which newcomers would wait so long, in the
  // window's mean, and still; 0: what has waited counts.
  TimeNs expected_ns = 0;
  // Fewer bits read make decoding of few rows faster, but prefill and large batches slower, unless
  // they multiply faster too. Then a queue alone takes all layers from the first precision at once.
  // More blocks are then only a part of what helps, and going on to the next precision costs most
  // of the quality: it takes somebody who waits for beyond_ns, in the end twice that, with a demand
  // that still grows (twice where it does not), and blocks that are short while fewer steps than
  // full_steps are full, or not even those; such a share of the way at a time.
  bool fewer_bits_are_faster = false;
  TimeNs beyond_ns = 0;
  bool beyond_alone = false;
  double full_steps = 0.8;
  double step = 0.25;

  bool is_long(TimeNs expected_wait_ns) const {
    return expected_ns > 0 && expected_wait_ns >= expected_ns;
  }
};

// When a form is left for one of lower precision, and when for one of higher. All thresholds are of
// observations within windows; nothing counts what was commanded before.
struct PolicyOptions {
  MorphRule rule = MorphRule::kSteady;

  // Pressure: blocks are short, being used to this share or wanted beyond what is free, and
  // somebody waits so long. A full cache without a queue is good use of memory; a queue without a
  // full cache wants compute, which fewer bits give less of.
  double kv_high = 0.85;
  TimeNs queue_delay_ns = 100 * kNsPerMs;

  // Entry: pressure for this share of the window, in so many samples at least, and still.
  TimeNs entry_window_ns = kNsPerS;
  double entry_share = 0.8;
  int entry_samples = 3;
  QueueOptions queue;

  // The next form is the first in which the demand takes at most this share of the blocks; at once
  // it goes such a share of the way from the first form to the last, at least and at most.
  double fill_after_entry = 1.0;
  double shortest_step = 0;
  double longest_step = 1;
  Precision lowest = Precision::kW4;
  double lowest_share = 0.5;  // of the layers, at most, at the lowest precision

  // Release: nobody waited long and none was preempted in the window, the demand takes at most this
  // share of the blocks that the higher form has, and the load has fallen to this share of what it
  // was when pressure began. Without the last, a load that only fewer bits can carry would be
  // followed up and down; it is forgotten after load_memory. Nor does it matter where nothing at
  // all ran for most of the window: the first form is at most some two times as slow. Nor where
  // fewer bits are faster and what was computed in the window would take the first form no larger
  // share, in full steps: a decode whose steps take longer is judged by the blocks that it keeps.
  TimeNs release_window_ns = 5 * kNsPerS;
  double release_fill = 0.7;
  double release_load = 0.6;
  double release_busy = 0.4;  // of the window
  TimeNs load_memory_ns = 60 * kNsPerS;

  // Entry before there is a queue: the demand will be above all blocks that far ahead, and arrivals
  // do not fall. 0: off.
  TimeNs forecast_ns = 0;
};

// What each mode trades. accuracy: waits 3 s before it acts, goes in small steps, never below w8: a
// short burst queues instead. balanced: the values above. performance: acts within half a second,
// all the way at once where blocks are missing, for a queue alone too, down to w3 where that is
// allowed.
PolicyOptions options_for(MorphMode mode);

// The same where fewer bits also multiply faster, so that a queue alone is always a reason: one
// behind which a first token would take a quarter of what it may (in performance mode 100 ms) to
// leave full precision, one in
// which somebody waited for a quarter to go further, and to the end half of it. Unless four bits
// are faster than eight too, that takes blocks that are short.
PolicyOptions where_fewer_bits_are_faster(PolicyOptions options, TimeNs slo_ttft_ns,
                                          bool four_than_eight);

}  // namespace protean
