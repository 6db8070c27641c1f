#pragma once

#include "control/load.h"
#include "control/policy_constants.h"
#include "control/step_speed.h"
#include "cost/step_time.h"

namespace protean {

// The longest step wanted while a morph runs or a request moves in with its KV, in seconds: prompt
// tokens are limited to keep it.
inline constexpr double kShortStepS = 0.25;

// What a prediction needs to know of a form on one device or several.
struct FormTraits {
  StepPrecision precision;
  double kv_blocks = 0;  // the sum over all devices
  double kl_nats = 0;    // KL divergence from full precision, for each token
};

// The way from the form that serves to another.
struct Course {
  FormTraits from;
  FormTraits to;
  double seconds = 0;       // how long the morph takes; 0: `to` serves already
  double seconds_back = 0;  // to where the replica is heading now
};

// What holds for every form.
struct Serving {
  int most_sequences = 0;
  int block_tokens = 16;
  int steps_in_flight = 1;  // each with its share of the sequences
  double ttft_s = 2;        // targets
  double tpot_s = 0;        // 0: none
};

struct Prediction {
  double late = 0;             // requests beyond a target, those included that wait at the end
  double backlog = 0;          // late requests that wait at the end and delay as many later ones
  double kl_nats = 0;          // lost by all answer tokens
  double kv_short_blocks = 0;  // at most, of running sequences
  double answer_tokens_per_s = 0;
  double capacity_per_s = 0;  // requests that the form can serve steadily
  bool by_kv = false;         // KV limits the sequences
};

// Predicts what becomes of a load if the form goes `course`: until the present rate of arrivals is
// expected to end and the queue is served, at most for the horizon. Pure, and takes some
// microseconds. A fluid of requests flows through prompts and decoding in slices of time that grow;
// each slice computes at the speed, and holds the KV, of the form that serves then. A slice in
// which answers begin and end is in a steady state. The fluid has no fluctuation of arrivals: the
// distribution of a reflected Brownian motion, the heavy-traffic limit of queues, adds it.
Prediction predict(const StepSpeed& speed, const Serving& serving, const Course& course,
                   const Load& load);

// A form that steadily serves as many requests as it can.
struct Capacity {
  double per_s = 0;           // requests
  double sequences = 0;       // running then
  double context_tokens = 0;  // mean of a sequence
  bool by_room = false;  // limited by KV or the number of sequences, not by the tokens of steps
  bool by_kv = false;
};
Capacity capacity_of(const StepSpeed& speed, const Serving& serving, const FormTraits& form,
                     const Load& load);

// Returns the probability that a request finds no room where `places` sequences have room and on
// average `busy` of them would be taken (Erlang's C formula).
double wait_probability(double places, double busy);

// Returns the probability that a queue waits longer than `beyond_s` at time `at_s`, if it was empty
// at 0, grows by `drift` (seconds of work for each second; negative: it shrinks) and varies by
// `variance` (seconds squared for each second).
double late_probability(double drift, double variance, double beyond_s, double at_s);

}  // namespace protean
