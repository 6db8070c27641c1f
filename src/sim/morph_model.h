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

// What changing form costs the modelled machine; what precision does to steps is StepCost's.
struct MorphCost {
  double copy_bytes_per_us = 1000;  // of variants and moved blocks; what running steps leave over
  double page_us = 2;               // to attach a page to the KV cache
  double failure_probability = 0;   // that what is prepared fails
};

// The worker's part of a morph without its memory: what is prepared is copied one after the other
// beside running steps and takes its pages from the free ones, a commit gives back what it
// replaces. Stops the program where a page would be used twice (invariant 1).
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
  // False for what was aborted while its event was on the way.
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
