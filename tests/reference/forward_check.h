#pragma once

#include <map>
#include <vector>

#include "model/checkpoint.h"
#include "tests/reference/reference_model.h"
#include "tests/reference/served_model.h"

namespace protean {

// Runs a checkpoint at one precision through everything that a scheduler may do to a sequence.
// Compares every logit with the reference within a tolerance, and with serving the sequence alone,
// one token per step, bit for bit. Failures are gtest failures.
class ForwardCheck {
 public:
  struct Difference {
    double worst = 0.0;    // of one logit, relative to max(1, the row's largest)
    double typical = 0.0;  // root mean square, relative to that of the row
  };

  ForwardCheck(const Checkpoint& checkpoint, Precision precision, int shards = 1);

  void one_token_at_a_time();
  void chunked_prefill();
  void several_sequences_in_a_batch();
  void shared_prefix_blocks();
  void preempted_and_recomputed();
  void scored_and_pooled();

  void everything();

  // Returns the token with the largest logit after each token of a text.
  std::vector<TokenId> likeliest_tokens() const;

 private:
  ServedModel serve(int threads) const;
  TestSequence sequence(const std::vector<TokenId>& tokens, std::uint32_t block_seed) const;
  void expect_scores(const std::vector<TokenId>& tokens,
                     const std::vector<TokenLogprobs>& scored) const;
  void expect_right(const TestSequence& sequence, const char* what) const;

  const Checkpoint& checkpoint_;
  Precision precision_;
  int shards_;
  Difference tolerance_;
  std::vector<TokenId> long_, branch_, short_;  // branch_ begins like long_
  // By token sequence: the reference's rows before and after the LM head, and the logits of serving
  // one token per step.
  std::map<std::vector<TokenId>, std::vector<std::vector<double>>> hidden_;
  std::map<std::vector<TokenId>, std::vector<std::vector<double>>> reference_;
  std::map<std::vector<TokenId>, std::map<int, std::vector<float>>> plain_;
};

}  // namespace protean
