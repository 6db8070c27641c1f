#pragma once

#include "control/step_speed.h"

namespace protean {

// A change of groups. All requests wait while KV moves between two steps of it.
struct KvChange {
  double requests = 0;  // that wait
  Batch batch;          // of a step once the change has ended, without prompts
  double sharing = 0;   // requests whose steps then take longer by a prompt
  double queued = 0;    // of these, requests whose prompts are computed after it
};

// KV that moves with a change, or is computed again after it.
struct MovingKv {
  double seconds = 0;  // in which links move it
  PromptWork prompt;   // its tokens
  double wait_s = 0;   // until it can be computed again: its request waits, and no other one
};

// Returns true if requests are predicted to wait less in total if KV is given up. If it moves, all
// wait for the links. If it is computed again, those that share its steps wait for its prompt, and
// its own request waits. A prompt takes its part of steps that are full of such prompts, because
// others wait for a place in them: not only for the prompt, but for the decodes of these steps too.
// For KV that is only cached no request waits; all of it counts as used later. Returns false if the
// cost of steps is not known.
bool pays_to_compute_again(const StepSpeed& speed, const StepPrecision& precision,
                           const KvChange& change, const MovingKv& kv);

}  // namespace protean
