#include "model/rope_table.h"

#include <algorithm>
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

// Scales as YaRN ("Efficient context window extension", section 3.2): keeps pairs that turn
// beta_fast times within the original context, divides the frequency of those that turn beta_slow
// times or less by `factor`, and interpolates between by the index of the pair.
double yarn_frequency(double frequency, int pair, int rotated, const RopeSpec& spec) {
  const auto pair_of = [&](double turns) {
    return rotated * std::log(spec.original_context / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(spec.theta));
  };
  const double first = std::max(std::floor(pair_of(spec.beta_fast)), 0.0);
  double last = std::min(std::ceil(pair_of(spec.beta_slow)), rotated - 1.0);
  last = last == first ? last + 0.001 : last;
  const double divided = std::clamp((pair - first) / (last - first), 0.0, 1.0);
  return frequency * (1.0 - divided) + frequency / spec.factor * divided;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& spec, int head_dim, int positions) {
  const int rotated = spec.rotated == 0 ? head_dim : spec.rotated;
  const bool is_long = spec.scaling == RopeScaling::kLong && positions > spec.original_context;
  const std::vector<float>& divisors = is_long ? spec.long_divisors : spec.divisors;
  check(divisors.empty() || static_cast<int>(divisors.size()) == rotated / 2,
        "rope divisors are one per rotated pair");
  std::vector<double> frequencies(static_cast<std::size_t>(rotated / 2));
  for (int i = 0; i < rotated / 2; ++i) {
    const auto at = static_cast<std::size_t>(i);
    double frequency = std::pow(spec.theta, -2.0 * i / rotated);
    if (spec.scaling == RopeScaling::kLinear) {
      frequency /= spec.factor;
    } else if (spec.scaling == RopeScaling::kLlama3) {
      frequency = llama3_frequency(frequency, spec);
    } else if (spec.scaling == RopeScaling::kYarn) {
      frequency = yarn_frequency(frequency, i, rotated, spec);
    }
    frequencies[at] = divisors.empty() ? frequency : frequency / double{divisors[at]};
  }
  return frequencies;
}

RotaryTable::RotaryTable(const RopeSpec& spec, int head_dim, int positions)
    : half_((spec.rotated == 0 ? head_dim : spec.rotated) / 2),
      adjacent_(spec.pairing == RopePairing::kAdjacent) {
  check(head_dim > 0 && head_dim % 2 == 0 && positions > 0, "a rope table needs pairs and places");
  const std::vector<double> frequencies = rope_frequencies(spec, head_dim, positions);
  const std::size_t size = frequencies.size() * static_cast<std::size_t>(positions);
  cosines_.reserve(size);
  sines_.reserve(size);
  for (int position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = position * frequency;
      cosines_.push_back(static_cast<float>(spec.magnitude * std::cos(angle)));
      sines_.push_back(static_cast<float>(spec.magnitude * std::sin(angle)));
    }
  }
}

cpu::RopeTable RotaryTable::view() const {
  return {.cosines = cosines_, .sines = sines_, .half = half_, .adjacent = adjacent_};
}

std::int64_t RotaryTable::bytes() const {
  return static_cast<std::int64_t>((cosines_.size() + sines_.size()) * sizeof(float));
}

RotaryTables::RotaryTables(const ModelSpec& spec, int positions)
    : plain_(spec.rope, spec.attention.head_dim, positions) {
  if (spec.windowed_rope) {
    windowed_.emplace(*spec.windowed_rope, spec.attention.head_dim, positions);
  }
}

RopeTables RotaryTables::view() const {
  return {plain_.view(), windowed_ ? windowed_->view() : plain_.view()};
}

std::int64_t RotaryTables::bytes() const {
  return plain_.bytes() + (windowed_ ? windowed_->bytes() : 0);
}

}  // namespace protean
