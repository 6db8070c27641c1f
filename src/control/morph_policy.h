#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "contract/form.h"
#include "control/form_path.h"
#include "control/monitor.h"
#include "control/plan_morph.h"
#include "control/policy_options.h"

namespace protean {

struct Wanted {
  Form form;
  std::string reason;  // for people, with the numbers observed
  MorphAim aim = {};
};

// Decides what form a replica should have (MorphServe's controller, section 4.1). Pure: the same
// signals and form give the same answer. How it goes there is plan_morph's matter.
class MorphPolicy {
 public:
  // The bounds are legal (validate).
  MorphPolicy(const PolicyOptions& options, const FormBounds& bounds);

  // `current` is the form, or the one that a morph under way leads to; signals.now.kv_blocks says
  // how far that has come. Nothing: stay with it. Cheap enough to be asked after every step.
  std::optional<Wanted> decide(const Signals& signals, const Form& current) const;

  const std::vector<Form>& path() const { return path_; }

 private:
  struct Place {
    std::size_t at = 0;
    bool beside = false;  // an operator wished so, or it has not come all the way
  };

  Place place_of(const Form& form) const;
  std::optional<Wanted> lower(const Signals& signals, std::size_t at) const;
  MorphAim aim_of(const Signals& signals, bool queued) const;
  bool is_late(const Signals& signals) const;
  double slower_at_first(std::size_t at) const;
  bool first_form_carries(const Signals& signals) const;
  bool is_beyond(std::size_t at) const;
  TimeNs long_wait_ns(const Signals& signals, std::size_t at) const;
  std::optional<Wanted> raise(const Signals& signals, std::size_t at) const;
  std::optional<Wanted> paper_rule(const Signals& signals, std::size_t at) const;

  PolicyOptions options_;
  FormBounds bounds_;
  std::vector<Form> path_;
  std::size_t first_rung_end_;  // where all halves have left the first precision
};

}  // namespace protean
