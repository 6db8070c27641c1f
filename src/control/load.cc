#include "control/load.h"

#include <algorithm>

namespace protean {

PromptWork Load::prompt_to_come(double hits) const {
  const double length = std::max(1.0, arrivals.prompt_tokens);
  // Longer prompts have more of the tokens, and each of their tokens has a longer context.
  const double context = (1 - hits * hits) * length * length * arrivals.prompt_spread / 2;
  const double tokens = std::max(1.0, (1 - hits) * length);
  return {.prompts = 1, .tokens = tokens, .context_tokens = context + tokens / 2};
}

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
    sum.admitted = sum.admitted + load.admitted;
    sum.waiting = sum.waiting + load.waiting;
    sum.oldest_wait_s = std::max(sum.oldest_wait_s, load.oldest_wait_s);
    keep_longest(load, sum);
    // Means count by the requests that they are of; a replica without any counts a little.
    const double weight = load.decoding + load.admitted.prompts + load.waiting.prompts + 0.01;
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
  for (double* const amount : {&part.decoding, &part.context_tokens, &part.arrivals.per_s,
                               &part.arrivals.most_per_s, &part.arrivals.later_per_s}) {
    *amount *= share;
  }
  part.admitted = load.admitted * share;
  part.waiting = load.waiting * share;
  return part;
}

}  // namespace protean
