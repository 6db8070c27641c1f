#include "replica/fingerprint_probe.h"

#include <algorithm>
#include <utility>

#include "model/fingerprint_weights.h"

namespace protean {

FingerprintProbe::FingerprintProbe(StepSizes of, Precision at, int through, int vocab,
                                   int block_tokens)
    : sizes(std::move(of)),
      precision(at),
      layers(through),
      plan(plan_of(sizes, vocab, block_tokens)),
      name(fmt::format("{} in {} layers, vocabulary {}:", to_string(at), through,
                       sizes.sampled ? vocab : 0)) {
  for (const SliceSizes& slice : sizes.slices) {
    name += fmt::format(" {}+{}", slice.context, slice.tokens);
  }
}

double FingerprintProbe::us() const {
  std::vector<double> sorted = times_us.empty() ? disturbed_us : times_us;
  const auto quarter = sorted.begin() + std::ssize(sorted) / 4;
  std::nth_element(sorted.begin(), quarter, sorted.end());
  return *quarter;
}

TimedStep FingerprintProbe::timed(const ModelSpec& model) const {
  TimedStep step{.work = work_of(plan, with_layers(model, layers)),
                 .precision = {.embeddings = default_embeddings_precision(precision)},
                 .us = us()};
  step.precision.layers[index_of(precision)] = 1;
  return in_layers(step, layers, model.layers);
}

int disturbed_steps(const std::vector<FingerprintProbe>& probes) {
  return static_cast<int>(
      std::count_if(probes.begin(), probes.end(),
                    [](const FingerprintProbe& probe) { return probe.times_us.empty(); }));
}

}  // namespace protean
