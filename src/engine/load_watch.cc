#include "engine/load_watch.h"

#include <algorithm>

namespace protean {
namespace {

double seconds(TimeNs ns) {
  return static_cast<double>(ns) / kNsPerS;
}

void add(const SequenceNeed& need, double left, Load& load) {
  if (need.tokens > load.largest_tokens) {
    load.largest_tokens = need.tokens;
    load.largest_left_tokens = left;
  }
  if (!need.has_kv) {
    const double to_compute = need.pending * (1 - load.hit_share);
    load.waiting = load.waiting + prompt_work(to_compute, need.tokens - to_compute);
  } else if (need.pending > 1) {
    load.admitted = load.admitted + prompt_work(need.pending, need.tokens - need.pending);
  } else {
    ++load.decoding;
    load.left_tokens += left;
  }
}

}  // namespace

Load LoadWatch::load(TimeNs now_ns, const Scheduler& scheduler, const AnswerLengths& lengths,
                     int block_tokens) const {
  const TimeNs since_ns = scheduler.demand().waiting_since_ns;
  Load load{.oldest_wait_s = since_ns < 0 ? 0 : seconds(now_ns - since_ns),
            .arrivals = arrivals_.rate(now_ns),
            .answer_tokens = lengths.mean(),
            .running_drawn_tokens = lengths.running_drawn_tokens(),
            .hit_share = scheduler.prefix_hit_share()};
  load.running_prompt_tokens = lengths.running_prompt_tokens(load.arrivals.prompt_tokens);
  load.context_tokens =
      static_cast<double>(scheduler.observe().kv_blocks_used) * static_cast<double>(block_tokens);
  for (const SequenceNeed& need : scheduler.needs()) {
    add(need, lengths.expected_left(need.drawn, need.most_drawn), load);
  }
  load.left_tokens /= std::max(1.0, load.decoding);
  return load;
}

LoadSeen LoadWatch::seen(TimeNs now_ns, const Load& load, TimeNs expected_wait_ns) const {
  return {.arrivals_per_s = load.arrivals.per_s,
          .arrivals_last_s = load.arrivals.lasts_s,
          .most_arrivals_per_s = load.arrivals.most_per_s,
          .answer_tokens = load.answer_tokens,
          .expected_wait_ns = expected_wait_ns,
          .ttft_p95_ns = ttft_.quantile(now_ns, 0.95),
          .tpot_p95_ns = tpot_.quantile(now_ns, 0.95)};
}

}  // namespace protean
