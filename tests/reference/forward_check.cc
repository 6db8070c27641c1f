#include "tests/reference/forward_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

namespace protean {
namespace {

constexpr int kBlocks = 40;
constexpr int kBlockTokens = 16;
constexpr int kSharedTokens = 2 * kBlockTokens;

std::vector<TokenId> random_tokens(int count, int vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::generate(tokens.begin(), tokens.end(),
                [&] { return static_cast<TokenId>(random() % static_cast<std::uint32_t>(vocab)); });
  return tokens;
}

double largest_of(const std::vector<double>& row) {
  double largest = 0.0;
  for (const double value : row) {
    largest = std::max(largest, std::abs(value));
  }
  return largest;
}

ForwardCheck::Difference compare(const std::vector<float>& got, const std::vector<double>& want) {
  ForwardCheck::Difference difference;
  double squared_error = 0.0;
  double squares = 0.0;
  for (std::size_t id = 0; id < want.size(); ++id) {
    const double error = std::abs(want[id] - double{got[id]});
    difference.worst =
        error <= difference.worst ? difference.worst : error;  // NaN becomes the worst
    squared_error += error * error;
    squares += want[id] * want[id];
  }
  difference.worst /= std::max(1.0, largest_of(want));
  difference.typical = std::sqrt(squared_error / squares);
  return difference;
}

// Rounding the inputs of products and the KV cache to bf16 alone makes up nearly all of the
// differences at 16 bits: without AMX, a reference that rounds them alike differs as much. The
// worst logit's depends on the processor in the third digit: 2.00e-2 of qwen2_yarn with AVX-512
// BF16.
ForwardCheck::Difference tolerance_of(Precision precision) {
  if (precision == Precision::kF32) {
    return {1e-4, 1e-5};
  }
  return precision.quantised() ? ForwardCheck::Difference{2.5e-2, 2.5e-2}
                               : ForwardCheck::Difference{2.1e-2, 2e-2};
}

}  // namespace

ForwardCheck::ForwardCheck(const Checkpoint& checkpoint, Precision precision, int shards)
    : checkpoint_(checkpoint),
      precision_(precision),
      shards_(shards),
      tolerance_(tolerance_of(precision)) {
  const int vocab = checkpoint.spec().vocab;
  long_ = random_tokens(75, vocab, 1);
  branch_ = random_tokens(52, vocab, 2);
  short_ = random_tokens(5, vocab, 3);
  std::copy_n(long_.begin(), kSharedTokens, branch_.begin());

  const ReferenceModel reference(checkpoint, precision);
  ServedModel plain = serve(1);
  for (const std::vector<TokenId>* tokens : {&long_, &branch_, &short_}) {
    hidden_[*tokens] = reference.hidden(*tokens);
    reference_[*tokens] = reference.logits_of(hidden_[*tokens]);
    TestSequence alone = sequence(*tokens, 0);
    plain.run(alone, {1});
    plain_[*tokens] = alone.logits;
  }
}

ServedModel ForwardCheck::serve(int threads) const {
  return {checkpoint_,
          {.precision = precision_,
           .threads = threads,
           .block_tokens = kBlockTokens,
           .blocks = kBlocks,
           .shards = shards_}};
}

// Returns blocks 0, 1, 2, ... for seed 0, and a permutation for other seeds.
TestSequence ForwardCheck::sequence(const std::vector<TokenId>& tokens,
                                    std::uint32_t block_seed) const {
  TestSequence sequence{.tokens = tokens, .blocks = std::vector<BlockId>(kBlocks)};
  std::iota(sequence.blocks.begin(), sequence.blocks.end(), 0);
  if (block_seed != 0) {
    std::shuffle(sequence.blocks.begin(), sequence.blocks.end(), std::mt19937(block_seed));
  }
  return sequence;
}

void ForwardCheck::expect_right(const TestSequence& sequence, const char* what) const {
  const auto& reference = reference_.at(sequence.tokens);
  const auto& plain = plain_.at(sequence.tokens);
  ASSERT_FALSE(sequence.logits.empty()) << what;
  for (const auto& [position, logits] : sequence.logits) {
    const auto& want = reference[static_cast<std::size_t>(position)];
    ASSERT_EQ(logits.size(), want.size());
    const Difference difference = compare(logits, want);
    ASSERT_LE(difference.worst, tolerance_.worst) << what << ", position " << position;
    ASSERT_LE(difference.typical, tolerance_.typical) << what << ", position " << position;
    ASSERT_EQ(std::memcmp(logits.data(), plain.at(position).data(), 4 * logits.size()), 0)
        << what << ", position " << position << ": not the bits of one token at a time";
  }
  const auto& last = sequence.logits.rbegin()->second;
  EXPECT_EQ(sequence.drawn.back(), std::max_element(last.begin(), last.end()) - last.begin());
}

void ForwardCheck::one_token_at_a_time() {
  for (const std::vector<TokenId>* tokens : {&long_, &branch_, &short_}) {
    TestSequence plain{.tokens = *tokens, .logits = plain_.at(*tokens)};
    ASSERT_EQ(plain.logits.size(), tokens->size());
    const auto& last = plain.logits.rbegin()->second;
    plain.drawn = {static_cast<TokenId>(std::max_element(last.begin(), last.end()) - last.begin())};
    expect_right(plain, "one token at a time");
    for (const auto& row : reference_.at(*tokens)) {
      EXPECT_GT(largest_of(row), 0.3);  // otherwise the tolerance would be meaningless
    }
  }
}

std::vector<TokenId> ForwardCheck::likeliest_tokens() const {
  std::vector<TokenId> tokens;
  for (const auto& [position, logits] : plain_.at(long_)) {
    tokens.push_back(
        static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  return tokens;
}

void ForwardCheck::chunked_prefill() {
  std::uint32_t seed = 10;
  for (const int threads : {1, 3}) {
    ServedModel served = serve(threads);
    for (const std::vector<int>& chunks :
         {std::vector<int>{75}, {16}, {7}, {33, 42}, {1, 74}, {64, 1}, {15, 1, 16, 17}}) {
      TestSequence sequence = this->sequence(long_, ++seed);
      served.run(sequence, chunks);
      expect_right(sequence, "chunked prefill");
    }
  }
}

void ForwardCheck::several_sequences_in_a_batch() {
  ServedModel served = serve(2);
  TestSequence a = sequence(long_, 0);
  TestSequence b = sequence(branch_, 0);
  TestSequence c = sequence(short_, 0);
  const std::vector<BlockId> shuffled = sequence({}, 77).blocks;
  a.blocks = {shuffled.begin(), shuffled.begin() + 5};
  b.blocks = {shuffled.begin() + 5, shuffled.begin() + 9};
  c.blocks = {shuffled.begin() + 9, shuffled.begin() + 10};
  served.step({{&a, 20}, {&c, 2}});
  served.step({{&c, 1}, {&b, 37}, {&a, 30}});
  served.step({{&b, 1}, {&a, 1}, {&c, 1}});
  served.step({{&a, 1}, {&c, 1}, {&b, 1}});
  served.step({{&b, 13}, {&a, 23}});
  expect_right(a, "batch");
  expect_right(b, "batch");
  expect_right(c, "batch");
}

void ForwardCheck::shared_prefix_blocks() {
  ServedModel served = serve(2);
  TestSequence first = sequence(long_, 5);
  served.run(first, {40});
  TestSequence second = sequence(branch_, 5);
  std::reverse(second.blocks.begin() + 2,
               second.blocks.end());  // has own blocks after two shared blocks
  second.computed = kSharedTokens;
  served.step({{&second, 9}});
  served.run(second, {1});
  expect_right(first, "owner of a shared prefix");
  expect_right(second, "user of a shared prefix");
}

void ForwardCheck::preempted_and_recomputed() {
  ServedModel served = serve(2);
  TestSequence victim = sequence(long_, 0);
  served.step({{&victim, 40}});
  served.step({{&victim, 1}});
  TestSequence other = sequence(branch_, 0);  // overwrites the victim's blocks
  served.run(other, {52});
  victim.computed = 0;
  std::rotate(victim.blocks.begin(), victim.blocks.begin() + 4, victim.blocks.end());
  TestSequence small = sequence(short_, 0);
  small.blocks = {victim.blocks.back()};
  served.step({{&small, 4}, {&victim, 42}});
  served.step({{&victim, 1}, {&small, 1}});
  served.run(victim, {31, 1});
  expect_right(victim, "preempted");
  expect_right(other, "preempting");
  expect_right(small, "next to a preempted sequence");
}

// Log-probabilities are checked against the reference, ranks and rows against the served logits.
void ForwardCheck::expect_scores(const std::vector<TokenId>& tokens,
                                 const std::vector<TokenLogprobs>& scored) const {
  ASSERT_EQ(scored.size(), tokens.size() - 1);
  for (std::size_t i = 0; i < scored.size(); ++i) {
    const std::vector<double>& want = reference_.at(tokens)[i];
    const double most = *std::max_element(want.begin(), want.end());
    double sum = 0.0;
    for (const double logit : want) {
      sum += std::exp(logit - most);
    }
    const auto next = static_cast<std::size_t>(tokens[i + 1]);
    const double tolerance = 2.0 * tolerance_.worst * std::max(1.0, largest_of(want));
    ASSERT_NEAR(scored[i].logprob, want[next] - most - std::log(sum), tolerance) << i;
    const std::vector<float>& logits = plain_.at(tokens).at(static_cast<int>(i));
    const std::vector<float>& row = scored[i].row;
    ASSERT_EQ(row.size(), logits.size());
    ASSERT_EQ(row[next], scored[i].logprob);
    const auto more = std::count_if(logits.begin(), logits.end(),
                                    [&](float logit) { return logit > logits[next]; });
    const auto equal = std::count(logits.begin(), logits.end(), logits[next]);
    ASSERT_GT(scored[i].rank, more);
    ASSERT_LE(scored[i].rank, more + equal);
    ASSERT_EQ(scored[i].top.size(), 3U);
    ASSERT_EQ(scored[i].top[0].token,
              std::max_element(logits.begin(), logits.end()) - logits.begin());
    ASSERT_EQ(scored[i].top[0].logprob, *std::max_element(row.begin(), row.end()));
  }
}

// Expects the same bits for any way to cut the prompt.
void ForwardCheck::scored_and_pooled() {
  for (const std::vector<TokenId>* tokens : {&long_, &short_}) {
    const ReadPrompt whole = serve(1).read(*tokens, {75});
    expect_scores(*tokens, whole.scored);
    const std::vector<std::vector<double>>& hidden = hidden_.at(*tokens);
    std::vector<double> sum(hidden[0].size());
    for (const std::vector<double>& row : hidden) {
      std::transform(sum.begin(), sum.end(), row.begin(), sum.begin(), std::plus<>());
    }
    const auto narrow = [](const std::vector<double>& wide) {
      return std::vector<float>(wide.begin(), wide.end());
    };
    EXPECT_LE(compare(narrow(whole.row_sum), sum).typical, tolerance_.typical);
    EXPECT_LE(compare(narrow(whole.last_row), hidden.back()).typical, tolerance_.typical);
    for (const std::vector<int>& chunks : {std::vector<int>{1}, {7}, {16}, {40, 3}}) {
      const ReadPrompt cut = serve(2).read(*tokens, chunks);
      EXPECT_EQ(cut.row_sum, whole.row_sum);
      EXPECT_EQ(cut.last_row, whole.last_row);
      ASSERT_EQ(cut.scored.size(), whole.scored.size());
      for (std::size_t i = 0; i < cut.scored.size(); ++i) {
        EXPECT_EQ(cut.scored[i].rank, whole.scored[i].rank);
        EXPECT_EQ(cut.scored[i].row, whole.scored[i].row);
      }
    }
  }
}

void ForwardCheck::everything() {
  one_token_at_a_time();
  chunked_prefill();
  several_sequences_in_a_batch();
  shared_prefix_blocks();
  preempted_and_recomputed();
  scored_and_pooled();
}

}  // namespace protean
