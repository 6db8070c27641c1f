#pragma once

#include "base/units.h"
#include "contract/form.h"
#include "contract/morph.h"
#include "control/form_path.h"
#include "control/plan_morph.h"
#include "control/policy_options.h"

namespace protean {

// How a replica's form may change. With kOff, only an operator's wish changes it.
struct MorphConfig {
  MorphMode mode = MorphMode::kBalanced;
  PolicyOptions policy;
  FormBounds bounds;                          // legal, see validate()
  Form start;                                 // the form as loaded
  int max_in_flight_swaps = kSwapsAtOnce;     // fewer if pages are short
  int moves_per_step = 16;                    // blocks moved between two steps; more if
  double moves_share = 0.03;                  // they take at most this share of a step's time
  TimeNs decide_every_ns = 20 * kNsPerMs;     // the least time between two decisions
  TimeNs step_ns_during_morph = kNsPerS / 4;  // wanted; steps take fewer prompt tokens for it
  TimeNs larger_kv_within_ns = 30 * kNsPerS;  // then requests that need a larger KV fail
};

}  // namespace protean
