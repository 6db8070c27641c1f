#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "cost/pages.h"
#include "ports/event.h"
#include "sim/shared_links.h"

namespace protean {

// What a morph costs on the simulated machine. StepCost holds how precision changes steps.
struct MorphCost {
  double copy_bytes_per_us = 1000;   // copies of variants and KV blocks, while no step runs
  double fetch_bytes_per_us = 1000;  // copies of shards that another device of the group holds
  double share_during_steps = 1;     // share of this bandwidth for variants while a step runs
  // KV of preempted requests comes back from host memory at this rate, to each device, while others
  // compute (InferCept); 0: it is computed again.
  double swap_bytes_per_us = 0;
  double step_slowdown = 0;  // share by which a step that begins during a copy takes longer
  double page_us = 2;        // time to attach one page to the KV cache
  // For tests of failures; no flag sets them.
  double failure_probability = 0;  // share of preparations that fail
  TimeNs failing_until_ns = 0;     // before this time, every preparation fails
};

// Models the workers' part of a morph on the devices of a form. Prepared steps are copied one after
// the other while steps run, into free pages; a commit frees the pages that it replaces. Stops the
// program if a device uses pages that are not free (invariant 1).
class MorphModel {
 public:
  struct Devices {
    ModelSpec spec;
    PageBudget budget;  // each device's pages
    Form form;
  };
  // `links` names the link of each device over which it fetches shards; see SharedLinks.
  MorphModel(Devices devices, const MorphCost& cost, std::uint64_t seed,
             std::vector<int> links = {});

  // Queues the copy that a step needs.
  void prepare(MorphId id, const MorphStep& step, TimeNs now_ns);
  MorphDone commit(MorphId id);
  void abort(MorphId id);

  bool copying() const { return !copies_.empty(); }
  // Returns true if the oldest copy is of shards that other devices hold.
  bool fetching() const { return copying() && copies_.front().fetches; }
  bool pending() const { return !copies_.empty() || !prepared_.empty(); }
  // Returns when the oldest copy ends if steps run until `busy_until_ns`; nothing without a copy.
  std::optional<TimeNs> copied_ns(TimeNs now_ns, TimeNs busy_until_ns,
                                  const BackgroundLinks& links = {}) const;
  // Copies from `now_ns` to `until_ns`, at which no copy but the oldest may have ended.
  void copy_until(TimeNs now_ns, TimeNs until_ns, TimeNs busy_until_ns,
                  const BackgroundLinks& links = {});
  MorphReady take_copied();  // the oldest

  TimeNs moving_ns(std::size_t blocks) const;
  const Form& form() const { return form_; }
  const ModelSpec& spec() const { return spec_; }
  const PageBudget& budget() const { return budget_; }
  // Returns the step that is prepared, before its commit.
  const MorphStep& prepared(MorphId id) const { return prepared_.at(id).step; }

 private:
  using Pages = std::vector<std::int64_t>;  // by device

  Pages pages_of(const MorphStep& step) const;
  Pages free_pages() const;
  double copy_us(const MorphStep& step, const Pages& pages) const;

  const ModelSpec spec_;
  const PageBudget budget_;
  const MorphCost cost_;
  const std::vector<int> links_;
  std::uint64_t random_;
  Form form_;
  struct Prepared {
    MorphStep step;
    Pages pages;
  };
  std::map<MorphId, Prepared> prepared_;
  struct Copy {
    MorphReady event;
    double left_us = 0;  // if no step ran
    bool fetches = false;
  };
  std::deque<Copy> copies_;  // one runs, the others wait
};

}  // namespace protean
