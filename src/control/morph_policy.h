#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contract/form.h"
#include "contract/morph.h"
#include "control/form_path.h"
#include "control/load.h"
#include "control/outlook.h"
#include "control/paper_rule.h"
#include "control/policy_options.h"
#include "control/step_speed.h"

namespace protean {

// Where a replica stands when it decides.
struct Situation {
  Form committed;                     // the form that steps planned from now on have
  Form heading;                       // in which the morph under way ends; without one, `committed`
  double kept_s = 0;                  // since the form last changed
  std::int64_t needed_blocks = 0;     // KV blocks in use and wanted
  double copy_bytes_per_s = 0;        // the rate at which variants are read
  std::vector<SwapComponent> failed;  // lately, or called off for want of KV: they are left alone
  std::span<const SwapComponent> missing;  // their variants are not packed yet, so none is used
};

struct Wanted {
  Form form;
  std::string reason;     // for people, with the predictions
  bool for_room = false;  // KV blocks are what `heading` lacks first
  bool lowers = false;    // it loses more quality than `heading`
};

struct Decision {
  std::optional<Wanted> wanted;  // nothing: stay with `heading`
  // One for each form, that of `heading` first. Empty if no form could be better: then no form was
  // weighed.
  std::vector<FormPrediction> predictions;
};

// Decides what form a replica should have: the one with the least predicted cost, which is late
// requests plus the mode's price of the quality lost. What a change itself costs, longer steps and
// lost prefix hits while it lasts, is part of the prediction. Lower precision has to pay at the
// present rate of arrivals while that is expected to last; higher precision, for a minute at the
// highest rate that the present one may be. A form is kept at least as long as getting there and
// back takes, unless it has too little. Pure: the same input gives the same answer.
class MorphPolicy {
 public:
  // The bounds are legal (validate). The targets of `serving` are those of the options.
  MorphPolicy(const PolicyOptions& options, const FormBounds& bounds, const Serving& serving);

  // Takes at most some hundred microseconds, for any number of layers; little if no form can be
  // better.
  Decision decide(const StepSpeed& speed, const Load& load, const Situation& now) const {
    return weigh(speed, load, now, false);
  }
  // Decides the same, and always predicts all forms.
  Decision explain(const StepSpeed& speed, const Load& load, const Situation& now) const {
    return weigh(speed, load, now, true);
  }

  // Returns the form that the paper's rule wants; nothing: stay.
  std::optional<Wanted> decide(const PaperRule& rule, const Situation& now) const;

  const std::vector<Form>& path() const { return path_; }
  // Returns the way on which the replica is: to `heading`.
  Way way(const StepSpeed& speed, const Situation& now) const;
  // Returns the ways to forms that lose more quality than `heading`.
  std::vector<Way> ways_down(const StepSpeed& speed, const Situation& now) const;

  // Predicts how long a morph takes.
  double seconds(const Form& from, const Form& to, double copy_bytes_per_s) const;

 private:
  struct Candidate {
    Form form;
    FormTraits traits;
  };

  Decision weigh(const StepSpeed& speed, const Load& load, const Situation& now, bool all) const;
  Candidate candidate_of(Form form) const;
  Candidate within_reach(const Candidate& to, const Situation& now) const;
  Way way_to(const Candidate& to, Way way, const Situation& now) const;
  bool kv_suffices(const Candidate& to, const Situation& now) const;

  PolicyOptions options_;
  FormBounds bounds_;
  Serving serving_;
  std::vector<Form> path_;
  std::vector<Candidate> candidates_;                              // those that lose least first
  std::array<std::array<double, kPrecisions.size()>, 3> bytes_{};  // by Component
};

}  // namespace protean
