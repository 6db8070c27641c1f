#pragma once

#include "control/step_speed.h"

namespace protean {

// A change of groups. All requests wait while KV moves between two steps of it.
struct KvChange {
  double requests = 0;  // that wait
  double seconds = 0;   // in which all KV would move
  Batch batch;          // of a step once the change has ended, without prompts
  double sharing = 0;   // requests whose steps then take longer by a prompt
};

// KV that moves with a change, or is computed again after it.
struct MovingKv {
  double seconds = 0;  // in which links move it
  PromptWork prompt;   // its tokens
};

// Returns true if requests are predicted to wait less in total if one of them gives up its KV. If
// it moves, all wait for the links. If it is computed again, those that share its steps wait for
// its prompt, and the request waits alone while others compute steps during the change. A prompt
// takes its part of steps that are full of such prompts, because others wait for a place in them.
// Returns false if the cost of steps is not known.
bool pays_to_compute_again(const StepSpeed& speed, const StepPrecision& precision,
                           const KvChange& change, const MovingKv& kv);

// The same for KV that is only cached, for which no request waits. All of it counts as used later.
bool pays_to_forget(const StepSpeed& speed, const StepPrecision& precision, const KvChange& change,
                    const MovingKv& kv);

}  // namespace protean
