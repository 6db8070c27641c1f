#pragma once

#include <string>
#include <vector>

#include "contract/precision.h"
#include "contract/step.h"
#include "cost/fit.h"
#include "cost/step_sizes.h"

namespace protean {

// A step of a fingerprint: its sizes, the precision of its layers and how many of them it runs
// through, and the times that it took.
struct FingerprintProbe {
  FingerprintProbe(StepSizes of, Precision at, int through, int vocab, int block_tokens);

  int runs() const { return static_cast<int>(times_us.size() + disturbed_us.size()); }
  // Returns the time that a quarter of the runs stays below. Other load only slows steps down, but
  // the fastest of many is faster than most steps of a server.
  double us() const;
  // Returns the step as one of the whole model's.
  TimedStep timed(const ModelSpec& model) const;

  StepSizes sizes;
  Precision precision;
  int layers = 1;
  StepPlan plan;
  std::string name;  // by which its times are kept
  std::vector<double> times_us = {};
  std::vector<double> disturbed_us = {};  // of runs during which others had requests
};

// Returns the number of steps that have no time without requests of others.
int disturbed_steps(const std::vector<FingerprintProbe>& probes);

}  // namespace protean
