#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace protean::loadtest {

// `sorted` is in rising order and not empty. Linear between the two nearest samples, as numpy has
// it by default; `percent` from 0 to 100.
double percentile(const std::vector<double>& sorted, double percent);

struct Distribution {
  std::int64_t count = 0;
  double mean = 0;
  double standard_deviation = 0;  // of the population
  double max = 0;
  std::vector<double> percentiles;  // as asked for
};
Distribution summarise(std::vector<double> samples, const std::vector<double>& percents);

struct Interval {
  double low = 0;
  double high = 0;
};

// A statistic of samples that may be reordered.
using Statistic = std::function<double(std::vector<double>& samples)>;

// 95 % interval of statistic(b) / statistic(a) by the percentile bootstrap: both are drawn again
// with replacement, `rounds` times. Same seed, same interval.
struct BootstrapOptions {
  int rounds = 1000;
  std::uint64_t seed = 0;
};
Interval bootstrap_ratio(const std::vector<double>& a, const std::vector<double>& b,
                         const Statistic& statistic, const BootstrapOptions& options);

double mean_of(std::vector<double>& samples);
Statistic percentile_of(double percent);  // by selection, so that it is cheap to repeat

}  // namespace protean::loadtest
