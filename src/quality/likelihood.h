#pragma once

#include <cstdint>

namespace protean {

// How well a model foretells a text: sums over its scored tokens.
class Likelihood {
 public:
  void add(double logprob) {  // natural logarithm
    ++tokens_;
    nats_ -= logprob;
    squares_ += logprob * logprob;
  }
  void add_bytes(std::int64_t bytes) { bytes_ += bytes; }  // of the text that the tokens make up

  std::int64_t tokens() const { return tokens_; }
  std::int64_t bytes() const { return bytes_; }
  // Of nothing, all of these are NaN.
  double nats_per_token() const;
  double perplexity() const;
  double bits_per_byte() const;
  double nats_standard_error() const;  // of nats_per_token(), as if tokens were independent

 private:
  std::int64_t tokens_ = 0;
  std::int64_t bytes_ = 0;
  double nats_ = 0.0;
  double squares_ = 0.0;
};

}  // namespace protean
