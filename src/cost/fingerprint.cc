#include "cost/fingerprint.h"

#include "base/check.h"

namespace protean {

Latency latency_of(const AnswerTime& one, const AnswerTime& other) {
  check(one.tokens != other.tokens, "two answers of one length do not tell TTFT from TPOT");
  const double tpot_us = (other.us - one.us) / (other.tokens - one.tokens);
  return {.ttft_us = one.us - one.tokens * tpot_us, .tpot_us = tpot_us};
}

double of_whole_model(const AtDepth<double>& one, const AtDepth<double>& other, int layers) {
  if (one.layers == other.layers) {
    return other.value * layers / other.layers;
  }
  const double layer = (other.value - one.value) / (other.layers - one.layers);
  return one.value + (layers - one.layers) * layer;
}

Latency of_whole_model(const AtDepth<Latency>& one, const AtDepth<Latency>& other, int layers) {
  const auto of = [&](double Latency::*which) {
    return of_whole_model({one.layers, one.value.*which}, {other.layers, other.value.*which},
                          layers);
  };
  return {.ttft_us = of(&Latency::ttft_us), .tpot_us = of(&Latency::tpot_us)};
}

}  // namespace protean
