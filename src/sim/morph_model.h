#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "contract/form.h"
#include "contract/morph.h"
#include "engine/morph_config.h"
#include "ports/event.h"

namespace protean {

// What a morph costs on the simulated machine. StepCost holds how precision changes steps.
struct MorphCost {
  double copy_bytes_per_us = 1000;  // bandwidth left by running steps, for variants and KV blocks
  double page_us = 2;               // time to attach one page to the KV cache
  double failure_probability = 0;   // share of preparations that fail
};

// Models the worker's part of a morph. Prepared steps are copied one after the other while steps
// run, into free pages; a commit frees the pages that it replaces. Stops the program if pages are
// used that are not free (invariant 1).
class MorphModel {
 public:
  MorphModel(const MorphConfig& config, const MorphCost& cost, std::uint64_t seed);

  struct Ready {
    TimeNs at_ns = 0;
    MorphReady event;
  };
  Ready prepare(MorphId id, const MorphStep& step, TimeNs now_ns);
  MorphDone commit(MorphId id);
  void abort(MorphId id);
  // Returns false once if `id` was aborted while its event was pending.
  bool is_wanted(MorphId id) { return aborted_.erase(id) == 0; }

  TimeNs moving_ns(std::size_t blocks) const;
  const Form& form() const { return form_; }

 private:
  std::int64_t free_pages() const;

  const MorphConfig config_;
  const MorphCost cost_;
  std::uint64_t random_;
  Form form_;
  TimeNs copier_free_ns_ = 0;
  struct Prepared {
    MorphStep step;
    std::int64_t pages = 0;
  };
  std::map<MorphId, Prepared> prepared_;
  std::set<MorphId> aborted_;
};

}  // namespace protean
