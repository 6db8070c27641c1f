#include "cost/fingerprint.h"

#include "base/check.h"

namespace protean {

Latency latency_of(const AnswerTime& one, const AnswerTime& other) {
  check(one.tokens != other.tokens, "two answers of one length do not tell TTFT from TPOT");
  const double tpot_us = (other.us - one.us) / (other.tokens - one.tokens);
  return {.ttft_us = one.us - one.tokens * tpot_us, .tpot_us = tpot_us};
}

double of_whole_model(double one, double other, const Depths& layers) {
  if (layers.one == layers.other) {
    return one * layers.model / layers.one;
  }
  const double layer = (other - one) / (layers.other - layers.one);
  // Noise may make the deeper copy the faster one. If layers may cost nothing but not less, least
  // squares give the mean of both times.
  return layer < 0 ? (one + other) / 2 : one + (layers.model - layers.one) * layer;
}

Latency of_whole_model(const Latency& one, const Latency& other, const Depths& layers) {
  return {.ttft_us = of_whole_model(one.ttft_us, other.ttft_us, layers),
          .tpot_us = of_whole_model(one.tpot_us, other.tpot_us, layers)};
}

}  // namespace protean
