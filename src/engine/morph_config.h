#pragma once

#include <cstdint>

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
  FormBounds bounds;  // legal, see validate(); full precision is that of the whole fleet
  Form start;         // the form in which the engine begins
  Form rest = {};     // that a release restores without a policy; the engine begins with `start`
  Form opened = {};   // whose precisions are allowed too, as the ladder's; no layers: `start`
  int max_in_flight_swaps = kSwapsAtOnce;  // fewer if pages are short
  // Blocks moved between two steps: at least moves_per_step, and more while they take at most
  // moves_share of a step's time.
  int moves_per_step = 16;
  double moves_share = 0.03;
  TimeNs decide_every_ns = 100 * kNsPerMs;  // the least time between two decisions
  // Pages that the model always gets back from models with which it shares its devices. Pages in
  // addition are borrowed from them. 0: the model trades no memory.
  std::int64_t own_pages = 0;
  std::int64_t own_kv_blocks = 0;  // that fit in its own pages with the fewest bits all over
  // The system takes the memory of pages back on the engine's thread, so in pieces.
  std::int64_t quota_piece_bytes = 256 * kMiB;
  std::uint64_t wishes_before = 0;  // WantQuotas up to this number were for an earlier engine
  bool weighed = false;             // the policy lowers precision only when the fleet allows it
  std::uint64_t ids_after = 0;      // ids of the engine's morph steps are larger than this
};

}  // namespace protean
