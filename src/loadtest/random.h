#pragma once

#include <array>
#include <cstdint>

namespace protean::loadtest {

// Returns a seed made from two numbers. Seeds that differ in either give independent streams.
std::uint64_t mix_seeds(std::uint64_t a, std::uint64_t b);

// xoshiro256++ with its own distributions: those of the standard library differ between
// implementations, and a seed must give the same schedule everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed);

  std::uint64_t next();
  double uniform();                                           // [0, 1)
  std::int64_t integer(std::int64_t low, std::int64_t high);  // both included
  double normal();
  double exponential();          // mean 1
  double gamma(double shape);    // scale 1, shape > 0 (Marsaglia and Tsang 2000)
  double weibull(double shape);  // scale 1, shape > 0

 private:
  std::array<std::uint64_t, 4> state_;
};

}  // namespace protean::loadtest
