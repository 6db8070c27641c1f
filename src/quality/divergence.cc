#include "quality/divergence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace protean {
namespace {

double mean_of(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double mean_square_of(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) {
    sum += double{value} * value;
  }
  return sum / static_cast<double>(values.size());
}

// Interpolates linearly between the two neighbouring values.
double percentile_of(std::vector<float> values, double percent) {
  if (values.empty()) {
    return std::nan("");
  }
  std::sort(values.begin(), values.end());
  const double at = percent / 100.0 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double share = at - static_cast<double>(below);
  return (1.0 - share) * values[below] + share * values[above];
}

}  // namespace

void Divergence::add(std::span<const float> reference, std::span<const float> row, TokenId token) {
  check(reference.size() == row.size() && static_cast<std::size_t>(token) < row.size(),
        "both models share a vocabulary that holds the token");
  double kl = 0.0;
  for (std::size_t id = 0; id < row.size(); ++id) {
    const double p = std::exp(double{reference[id]});
    if (p > 0.0) {  // a term with p = 0 is 0, whatever the model predicts
      kl += p * (double{reference[id]} - double{row[id]});
    }
  }
  const auto at = static_cast<std::size_t>(token);
  kl_.push_back(static_cast<float>(kl));
  delta_p_.push_back(
      static_cast<float>(std::exp(double{row[at]}) - std::exp(double{reference[at]})));
  log_ratio_ += double{reference[at]} - double{row[at]};
  const auto top = [](std::span<const float> of) {
    return std::max_element(of.begin(), of.end()) - of.begin();
  };
  same_top_ += top(reference) == top(row) ? 1 : 0;
}

double Divergence::kl_mean() const {
  return mean_of(kl_);
}

double Divergence::kl_standard_error() const {
  const double mean = mean_of(kl_);
  return std::sqrt(std::max(0.0, mean_square_of(kl_) - mean * mean) /
                   static_cast<double>(kl_.size() - 1));
}

double Divergence::kl_percentile(double percent) const {
  return percentile_of(kl_, percent);
}

double Divergence::top1_agreement() const {
  return static_cast<double>(same_top_) / static_cast<double>(kl_.size());
}

double Divergence::delta_p_mean() const {
  return mean_of(delta_p_);
}

double Divergence::delta_p_rms() const {
  return std::sqrt(mean_square_of(delta_p_));
}

double Divergence::delta_p_percentile(double percent) const {
  return percentile_of(delta_p_, percent);
}

double Divergence::log_perplexity_ratio() const {
  return log_ratio_ / static_cast<double>(kl_.size());
}

}  // namespace protean
