#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace protean {

// The percentiles that llama.cpp's perplexity tool prints, in percent.
inline constexpr std::array kKlPercentiles{100.0, 99.9, 99.0, 95.0, 90.0, 50.0,
                                           10.0,  5.0,  1.0,  0.1,  0.0};
inline constexpr std::array kDeltaPercentiles{100.0, 99.9, 99.0, 95.0, 90.0, 75.0, 50.0,
                                              25.0,  10.0, 5.0,  1.0,  0.1,  0.0};

// Measures how far a model's predictions are from a reference's, token by token of the same text.
class Divergence {
 public:
  // Rows are log-softmax over the same vocabulary; `token` is the next token of the text.
  void add(std::span<const float> reference, std::span<const float> row, TokenId token);

  std::int64_t tokens() const { return static_cast<std::int64_t>(kl_.size()); }
  double kl_mean() const;  // nats, KL(reference || model)
  double kl_standard_error() const;
  double kl_percentile(double percent) const;
  double top1_agreement() const;  // share of positions with the same most likely token
  double delta_p_mean() const;    // model's less reference's probability of the text's token
  double delta_p_rms() const;
  double delta_p_percentile(double percent) const;
  double log_perplexity_ratio() const;  // ln of the model's perplexity over the reference's

 private:
  std::vector<float> kl_;
  std::vector<float> delta_p_;
  double log_ratio_ = 0.0;
  std::int64_t same_top_ = 0;
};

}  // namespace protean
