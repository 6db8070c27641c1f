#pragma once

#include <span>

#include "control/arrival_rate.h"
#include "cost/prompt_work.h"

namespace protean {

// What a replica has to do, now and in the near future: the input of a prediction in addition to
// the form. Tokens are counted in the mean of sequences, so that a prediction takes constant time.
struct Load {
  // Sequences that have KV.
  double decoding = 0;        // sequences past their prompts
  double context_tokens = 0;  // tokens in KV, admitted prompts included
  double left_tokens = 0;     // tokens that one running answer is expected to get still
  PromptWork admitted;        // what is not computed yet of sequences within their prompts

  PromptWork waiting;  // of sequences that wait for KV, or for room in a step
  double oldest_wait_s = 0;

  // The longest sequence alone.
  double largest_tokens = 0;       // tokens that KV has to hold now
  double largest_left_tokens = 0;  // tokens that it is expected to get still

  // Requests to come.
  ArrivalRate::Rate arrivals;
  double answer_tokens = 0;  // mean of one request
  // Means over the steps of running sequences: longer answers count for more.
  double running_prompt_tokens = 0;
  double running_drawn_tokens = 0;
  double hit_share = 0;  // share of prompts that the prefix cache has

  // Returns the work of one request to come, in the mean, if the prefix cache has `hits` of it.
  PromptWork prompt_to_come(double hits) const;
};

// Returns the load of all replicas together, with the arrivals of the whole fleet.
Load sum_of(std::span<const Load> loads, const ArrivalRate::Rate& arrivals);
// Returns a load to which no requests are added.
Load without_arrivals(Load load);
// Lets the longest sequence of `other` count if it is longer.
void keep_longest(const Load& other, Load& load);
// Returns an equal share of a load. The longest sequence stays as long.
Load share_of(const Load& load, double share);

}  // namespace protean
