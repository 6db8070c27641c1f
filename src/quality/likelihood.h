#pragma once

#include <cstdint>

namespace protean {

// Measures how well a model predicts a text, by sums over its scored tokens.
class Likelihood {
 public:
  void add(double logprob) {  // natural logarithm
    ++tokens_;
    nats_ -= logprob;
    squares_ += logprob * logprob;
  }
  void add_bytes(std::int64_t bytes) { bytes_ += bytes; }  // length of the tokens' text

  std::int64_t tokens() const { return tokens_; }
  std::int64_t bytes() const { return bytes_; }
  // These are NaN if no token was added.
  double nats_per_token() const;
  double perplexity() const;
  double bits_per_byte() const;
  double nats_standard_error() const;  // error of nats_per_token(), as if tokens were independent

 private:
  std::int64_t tokens_ = 0;
  std::int64_t bytes_ = 0;
  double nats_ = 0.0;
  double squares_ = 0.0;
};

}  // namespace protean
