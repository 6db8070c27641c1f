#include "quality/likelihood.h"

#include <algorithm>
#include <cmath>

namespace protean {

double Likelihood::nats_per_token() const {
  return nats_ / static_cast<double>(tokens_);
}

double Likelihood::perplexity() const {
  return std::exp(nats_per_token());
}

double Likelihood::bits_per_byte() const {
  return nats_ / std::log(2.0) / static_cast<double>(bytes_);
}

double Likelihood::nats_standard_error() const {
  const double mean = nats_per_token();
  const double variance = squares_ / static_cast<double>(tokens_) - mean * mean;
  return std::sqrt(std::max(0.0, variance) / static_cast<double>(tokens_ - 1));
}

}  // namespace protean
