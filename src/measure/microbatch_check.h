#pragma once

#include <boost/json/object.hpp>
#include <span>
#include <string>

#include "cost/fit.h"

namespace protean {

// How well the time of a prompt's chunk is predicted, which microbatches are divided by: by the
// cost model, and by a line over tokens, which has no terms of attention (KunServe section 5.4).
struct MicrobatchCheck {
  struct Errors {
    int steps = 0;
    double mean = 0;            // of |predicted - measured| / measured
    double mean_by_tokens = 0;  // the same of the line
  };
  Errors without_prefix;
  Errors with_prefix;  // chunks that attend to tokens of earlier steps
};

// Checks steps of one prompt among `held_out`. The line is fitted to those among `fitted`, for each
// precision of layers; precisions that `fitted` lacks are left out.
MicrobatchCheck check_microbatches(const StepCost& cost, std::span<const TimedStep> fitted,
                                   std::span<const TimedStep> held_out);

std::string to_text(const MicrobatchCheck& check);
boost::json::object to_json(const MicrobatchCheck& check);

}  // namespace protean
