#include "loadtest/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace protean::loadtest {
namespace {

std::uint64_t split_mix(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

}  // namespace

std::uint64_t mix_seeds(std::uint64_t a, std::uint64_t b) {
  std::uint64_t state = a;
  state = split_mix(state) ^ b;
  return split_mix(state);
}

Random::Random(std::uint64_t seed) {
  for (std::uint64_t& word : state_) {
    word = split_mix(seed);
  }
}

std::uint64_t Random::next() {
  const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const std::uint64_t shifted = state_[1] << 17U;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double Random::uniform() {
  return static_cast<double>(next() >> 11U) * 0x1p-53;
}

std::int64_t Random::integer(std::int64_t low, std::int64_t high) {
  check(low <= high, "low is not above high");
  const double width = static_cast<double>(high - low) + 1;
  return low + static_cast<std::int64_t>(uniform() * width);
}

double Random::normal() {
  const double radius = std::sqrt(2 * exponential());
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

double Random::exponential() {
  return -std::log1p(-uniform());
}

double Random::gamma(double shape) {
  check(shape > 0, "the shape is positive");
  if (shape < 1) {
    const double larger = gamma(shape + 1);
    return larger * std::pow(1 - uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal();
    const double root = 1 + c * x;
    if (root <= 0) {
      continue;
    }
    const double v = root * root * root;
    if (std::log1p(-uniform()) < 0.5 * x * x + d * (1 - v + std::log(v))) {
      return d * v;
    }
  }
}

double Random::weibull(double shape) {
  check(shape > 0, "the shape is positive");
  return std::pow(exponential(), 1 / shape);
}

}  // namespace protean::loadtest
