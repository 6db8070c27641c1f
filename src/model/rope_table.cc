#include "model/rope_table.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace protean {
namespace {

// Scales as Llama 3.1: keeps short waves, which fit the original context often, divides the
// frequency of waves longer than the context by `factor`, and interpolates between.
double llama3_frequency(double frequency, const RopeSpec& spec) {
  const double turns = spec.original_context * frequency / (2.0 * std::numbers::pi);
  if (turns > spec.high_freq_factor) {
    return frequency;
  }
  if (turns < spec.low_freq_factor) {
    return frequency / spec.factor;
  }
  const double span = spec.high_freq_factor - spec.low_freq_factor;
  const double kept = span > 0.0 ? (turns - spec.low_freq_factor) / span : 1.0;
  return kept * frequency + (1.0 - kept) * frequency / spec.factor;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& spec, int head_dim) {
  const int half = head_dim / 2;
  check(spec.divisors.empty() || static_cast<int>(spec.divisors.size()) == half,
        "rope divisors are one per rotated pair");
  std::vector<double> frequencies(static_cast<std::size_t>(half));
  for (int i = 0; i < half; ++i) {
    const auto at = static_cast<std::size_t>(i);
    double frequency = std::pow(spec.theta, -2.0 * i / head_dim);
    if (spec.scaling == RopeScaling::kLinear) {
      frequency /= spec.factor;
    } else if (spec.scaling == RopeScaling::kLlama3) {
      frequency = llama3_frequency(frequency, spec);
    }
    frequencies[at] = spec.divisors.empty() ? frequency : frequency / double{spec.divisors[at]};
  }
  return frequencies;
}

RotaryTable::RotaryTable(const RopeSpec& spec, int head_dim, int positions)
    : half_(head_dim / 2), adjacent_(spec.pairing == RopePairing::kAdjacent) {
  check(head_dim > 0 && head_dim % 2 == 0 && positions > 0, "a rope table needs pairs and places");
  const std::vector<double> frequencies = rope_frequencies(spec, head_dim);
  const std::size_t size = frequencies.size() * static_cast<std::size_t>(positions);
  cosines_.reserve(size);
  sines_.reserve(size);
  for (int position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = position * frequency;
      cosines_.push_back(static_cast<float>(std::cos(angle)));
      sines_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

cpu::RopeTable RotaryTable::view() const {
  return {.cosines = cosines_, .sines = sines_, .half = half_, .adjacent = adjacent_};
}

std::int64_t RotaryTable::bytes() const {
  return static_cast<std::int64_t>((cosines_.size() + sines_.size()) * sizeof(float));
}

}  // namespace protean
