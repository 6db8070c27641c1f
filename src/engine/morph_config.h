#pragma once

#include "base/units.h"
#include "contract/form.h"
#include "contract/morph.h"
#include "control/form_path.h"
#include "control/plan_morph.h"
#include "control/policy_options.h"

namespace protean {

// How a replica's form may change. kOff: only by an operator's wish.
struct MorphConfig {
  MorphMode mode = MorphMode::kBalanced;
  PolicyOptions policy;
  FormBounds bounds;                          // legal (validate)
  Form start;                                 // as loaded
  int max_in_flight_swaps = kSwapsAtOnce;     // as far as there are pages for them
  int moves_per_step = 16;                    // of blocks, between two steps; and more where
  double moves_share = 0.03;                  // they take no more than this of a step's time
  TimeNs decide_every_ns = 20 * kNsPerMs;     // at most that often
  TimeNs step_ns_during_morph = kNsPerS / 4;  // steps take fewer tokens of prompts where it helps
  TimeNs larger_kv_within_ns = 30 * kNsPerS;  // else what needs one fails: none is coming
};

}  // namespace protean
