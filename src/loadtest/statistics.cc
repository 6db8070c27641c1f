#include "loadtest/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "loadtest/random.h"

namespace protean::loadtest {
namespace {

void resample(const std::vector<double>& from, Random& random, std::vector<double>& to) {
  to.resize(from.size());
  for (double& sample : to) {
    sample = from[static_cast<std::size_t>(random.uniform() * static_cast<double>(from.size()))];
  }
}

}  // namespace

double percentile(const std::vector<double>& sorted, double percent) {
  check(!sorted.empty() && percent >= 0 && percent <= 100,
        "there are samples, and the percentile is from 0 to 100");
  const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * part;
}

Distribution summarise(std::vector<double> samples, const std::vector<double>& percents) {
  Distribution found{.count = static_cast<std::int64_t>(samples.size())};
  if (samples.empty()) {
    found.percentiles.assign(percents.size(), 0);
    return found;
  }
  std::sort(samples.begin(), samples.end());
  found.mean = mean_of(samples);
  double squares = 0;
  for (const double sample : samples) {
    squares += (sample - found.mean) * (sample - found.mean);
  }
  found.standard_deviation = std::sqrt(squares / static_cast<double>(samples.size()));
  found.max = samples.back();
  for (const double percent : percents) {
    found.percentiles.push_back(percentile(samples, percent));
  }
  return found;
}

Interval bootstrap_ratio(const std::vector<double>& a, const std::vector<double>& b,
                         const Statistic& statistic, const BootstrapOptions& options) {
  check(!a.empty() && !b.empty() && options.rounds > 0, "there are samples and rounds");
  Random random(options.seed);
  std::vector<double> ratios;
  std::vector<double> drawn;
  for (int round = 0; round < options.rounds; ++round) {
    resample(a, random, drawn);
    const double base = statistic(drawn);
    resample(b, random, drawn);
    const double other = statistic(drawn);
    if (base != 0) {
      ratios.push_back(other / base);
    }
  }
  if (ratios.empty()) {
    return {1, 1};
  }
  std::sort(ratios.begin(), ratios.end());
  return {percentile(ratios, 2.5), percentile(ratios, 97.5)};
}

double mean_of(std::vector<double>& samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

Statistic percentile_of(double percent) {
  return [percent](std::vector<double>& samples) {
    const double place = percent / 100 * static_cast<double>(samples.size() - 1);
    const auto below = static_cast<std::ptrdiff_t>(place);
    std::nth_element(samples.begin(), samples.begin() + below, samples.end());
    const double low = samples[static_cast<std::size_t>(below)];
    if (static_cast<std::size_t>(below) + 1 == samples.size()) {
      return low;
    }
    const double high = *std::min_element(samples.begin() + below + 1, samples.end());
    return low + (high - low) * (place - static_cast<double>(below));
  };
}

}  // namespace protean::loadtest
