#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace protean::loadtest {

// Returns a percentile (0 to 100) of samples in rising order, of which there must be at least one.
// Interpolates linearly between the two nearest samples, as numpy does by default.
double percentile(const std::vector<double>& sorted, double percent);

struct Distribution {
  std::int64_t count = 0;
  double mean = 0;
  double standard_deviation = 0;  // the population's, not the sample's
  double max = 0;
  std::vector<double> percentiles;  // one for each of `percents`
};
Distribution summarise(std::vector<double> samples, const std::vector<double>& percents);

struct Interval {
  double low = 0;
  double high = 0;
};

// Computes a statistic; may reorder the samples.
using Statistic = std::function<double(std::vector<double>& samples)>;

struct BootstrapOptions {
  int rounds = 1000;
  std::uint64_t seed = 0;
};
// Returns the 95 % confidence interval of statistic(b) / statistic(a) by the percentile bootstrap:
// resamples `a` and `b` with replacement in each round. Depends only on its arguments.
Interval bootstrap_ratio(const std::vector<double>& a, const std::vector<double>& b,
                         const Statistic& statistic, const BootstrapOptions& options);

double mean_of(std::vector<double>& samples);
Statistic percentile_of(double percent);  // selects instead of sorting, for repeated use

}  // namespace protean::loadtest
