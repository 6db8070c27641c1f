#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/precision.h"
#include "cost/fit.h"
#include "cost/step_time.h"

namespace protean {

// The time to the first token of a prompt and the time of each further token.
struct Latency {
  double ttft_us = 0;
  double tpot_us = 0;
};

// The time of a whole answer of so many tokens.
struct AnswerTime {
  int tokens = 0;
  double us = 0;
};

// Solves equation 1 of iServe section 5.3, time = TTFT + tokens * TPOT, for two answers to one
// prompt. Their numbers of tokens must differ.
Latency latency_of(const AnswerTime& one, const AnswerTime& other);

// Numbers of hidden layers: of a model, and of two smaller copies of it.
struct Depths {
  int model = 1;
  int one = 1;
  int other = 2;
};

// Returns the time or the memory of a model, given those of its two smaller copies: equations 2 and
// 3 of section 5.3 (L2), and the extrapolation of section 5.2 (M2), by least squares with layers
// that cost nothing or more.
double of_whole_model(double one, double other, const Depths& layers);
Latency of_whole_model(const Latency& one, const Latency& other, const Depths& layers);

// The estimate of a whole model at one precision of its layers, on one device.
struct ModelEstimate {
  Precision precision;
  Latency latency;  // one request, alone
  std::int64_t weight_bytes = 0;
  std::int64_t kv_token_bytes = 0;
};

// What was learned from running a model with few of its hidden layers.
struct Fingerprint {
  StepCost cost;
  std::vector<ModelEstimate> models;
  std::vector<TimedStep> steps;  // timed steps, see in_layers()
  int layers = 0;                // layers of the deepest timed model
  int prompt_tokens = 0;         // prompt of the request behind each latency
  double seconds = 0;            // time that learning took
  double load_seconds = 0;       // part of `seconds` that loading weights took
  int kept_times = 0;            // times of steps that an earlier measurement had kept
  int disturbed_steps = 0;       // steps that were never timed without requests of others
};

}  // namespace protean
