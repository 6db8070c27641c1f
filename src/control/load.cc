#include "control/load.h"

#include <algorithm>

namespace protean {

void keep_longest(const Load& other, Load& load) {
  if (other.largest_tokens > load.largest_tokens) {
    load.largest_tokens = other.largest_tokens;
    load.largest_left_tokens = other.largest_left_tokens;
  }
}

Load sum_of(std::span<const Load> loads, const ArrivalRate::Rate& arrivals) {
  Load sum;
  double left = 0;
  double weights = 0;
  for (const Load& load : loads) {
    sum.decoding += load.decoding;
    sum.context_tokens += load.context_tokens;
    left += load.decoding * load.left_tokens;
    sum.admitted += load.admitted;
    sum.admitted_tokens += load.admitted_tokens;
    sum.waiting += load.waiting;
    sum.waiting_tokens += load.waiting_tokens;
    sum.oldest_wait_s = std::max(sum.oldest_wait_s, load.oldest_wait_s);
    keep_longest(load, sum);
    // Means count by the requests that they are of; a replica without any counts a little.
    const double weight = load.decoding + load.admitted + load.waiting + 0.01;
    weights += weight;
    sum.answer_tokens += weight * load.answer_tokens;
    sum.running_prompt_tokens += weight * load.running_prompt_tokens;
    sum.running_drawn_tokens += weight * load.running_drawn_tokens;
    sum.hit_share += weight * load.hit_share;
  }
  sum.left_tokens = left / std::max(1.0, sum.decoding);
  for (double* const mean : {&sum.answer_tokens, &sum.running_prompt_tokens,
                             &sum.running_drawn_tokens, &sum.hit_share}) {
    *mean /= weights;
  }
  sum.arrivals = arrivals;
  return sum;
}

Load without_arrivals(Load load) {
  load.arrivals.per_s = load.arrivals.most_per_s = load.arrivals.later_per_s = 0;
  return load;
}

Load share_of(const Load& load, double share) {
  Load part = load;
  for (double* const amount :
       {&part.decoding, &part.context_tokens, &part.admitted, &part.admitted_tokens, &part.waiting,
        &part.waiting_tokens, &part.arrivals.per_s, &part.arrivals.most_per_s,
        &part.arrivals.later_per_s}) {
    *amount *= share;
  }
  return part;
}

}  // namespace protean
