#pragma once

#include "control/arrival_rate.h"

namespace protean {

// What a replica has to do, now and in the near future: the input of a prediction in addition to
// the form. Tokens are counted in the mean of sequences, so that a prediction takes constant time.
struct Load {
  // Sequences that have KV.
  double decoding = 0;         // past their prompts
  double context_tokens = 0;   // in KV, prompts admitted included
  double left_tokens = 0;      // expected still of one running answer
  double admitted = 0;         // within their prompts
  double admitted_tokens = 0;  // of those prompts, not computed yet

  // Sequences that wait for KV, or for room in a step.
  double waiting = 0;
  double waiting_tokens = 0;  // to compute
  double oldest_wait_s = 0;

  // The longest sequence alone.
  double largest_tokens = 0;       // that KV has to hold now
  double largest_left_tokens = 0;  // and that it is expected to get

  // Requests to come.
  ArrivalRate::Rate arrivals;
  double answer_tokens = 0;          // mean of one request
  double running_prompt_tokens = 0;  // means over the steps of running sequences, of which those
  double running_drawn_tokens = 0;   // with long answers run for longest
  double hit_share = 0;              // share of prompts that the prefix cache has
};

}  // namespace protean
