#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "quality/divergence.h"
#include "quality/likelihood.h"
#include "quality/overlap.h"
#include "quality/schedule.h"
#include "quality/windows.h"

namespace protean {
namespace {

// Every token but the first is scored once, in order, with as much context as possible.
TEST(Windows, ScoreEveryTokenOnceWithEnoughContext) {
  for (int tokens = 0; tokens < 60; ++tokens) {
    for (int context = 2; context < 20; ++context) {
      for (int stride = 1; stride < context; ++stride) {
        int next = 1;
        for (const Window& window : cut_windows(7, tokens, context, stride)) {
          EXPECT_EQ(window.document, 7U);
          ASSERT_EQ(window.first_scored, next);
          ASSERT_GT(window.end, window.first_scored);
          ASSERT_LE(window.end, tokens);
          ASSERT_LE(window.end - window.begin, context);
          ASSERT_LT(window.begin, window.first_scored) << "no context to predict it from";
          if (window.begin > 0) {
            ASSERT_GE(window.first_scored - window.begin, context - stride);
          }
          next = window.end;
        }
        EXPECT_EQ(next, std::max(tokens, 1));
      }
    }
  }
}

TEST(Likelihood, MatchesValuesComputedByHand) {
  Likelihood likelihood;
  for (const double p : {0.5, 0.25, 0.125, 0.5}) {
    likelihood.add(std::log(p));
  }
  likelihood.add_bytes(14);
  EXPECT_EQ(likelihood.tokens(), 4);
  EXPECT_NEAR(likelihood.nats_per_token(), 7.0 / 4.0 * std::log(2.0), 1e-12);
  EXPECT_NEAR(likelihood.perplexity(), std::pow(2.0, 7.0 / 4.0), 1e-12);
  EXPECT_NEAR(likelihood.bits_per_byte(), 7.0 / 14.0, 1e-12);
  // Bits 1, 2, 3, 1: variance 11/16, over 4 - 1.
  EXPECT_NEAR(likelihood.nats_standard_error(), std::sqrt(11.0 / 16.0 / 3.0) * std::log(2.0),
              1e-12);
}

std::vector<float> log_row(std::vector<double> weights) {
  double sum = 0.0;
  for (const double weight : weights) {
    sum += weight;
  }
  std::vector<float> row;
  for (const double weight : weights) {
    row.push_back(static_cast<float>(std::log(weight / sum)));
  }
  return row;
}

TEST(Divergence, IsZeroBetweenEqualModels) {
  Divergence divergence;
  const auto row = log_row({1, 2, 3, 4});
  divergence.add(row, row, 2);
  EXPECT_EQ(divergence.kl_mean(), 0.0);
  EXPECT_EQ(divergence.top1_agreement(), 1.0);
  EXPECT_EQ(divergence.delta_p_rms(), 0.0);
  EXPECT_EQ(divergence.log_perplexity_ratio(), 0.0);
}

TEST(Divergence, MatchesValuesComputedByHand) {
  Divergence divergence;
  divergence.add(log_row({1, 1}), log_row({3, 1}), 1);  // 1/2, 1/2 against 3/4, 1/4
  divergence.add(log_row({1, 3}), log_row({1, 3}), 0);
  const double kl = 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25);
  EXPECT_NEAR(divergence.kl_mean(), kl / 2, 1e-6);
  EXPECT_NEAR(divergence.kl_percentile(100), kl, 1e-6);
  EXPECT_NEAR(divergence.kl_percentile(50), kl / 2, 1e-6);
  EXPECT_NEAR(divergence.kl_percentile(0), 0, 1e-6);
  EXPECT_NEAR(divergence.delta_p_mean(), -0.25 / 2, 1e-6);
  EXPECT_NEAR(divergence.delta_p_rms(), std::sqrt(0.0625 / 2), 1e-6);
  EXPECT_NEAR(divergence.log_perplexity_ratio(), std::log(2.0) / 2, 1e-6);
  EXPECT_EQ(divergence.top1_agreement(), 1.0);  // ties go to the lowest id
}

TEST(Divergence, IgnoresTokensThatTheReferenceRulesOut) {
  Divergence divergence;
  divergence.add(log_row({1, 0}), log_row({1, 1}), 0);
  EXPECT_NEAR(divergence.kl_mean(), std::log(2.0), 1e-6);
}

// Compares with the definition by trying all subsequences of a small candidate.
TEST(Overlap, RougeLIsTheLongestCommonSubsequence) {
  std::mt19937 random(1);
  const auto words = [&] {
    std::vector<std::string> made(random() % 8);
    for (std::string& word : made) {
      word = std::string(1, static_cast<char>('a' + random() % 3));
    }
    return made;
  };
  for (int round = 0; round < 300; ++round) {
    const auto a = words();
    const auto b = words();
    std::size_t longest = 0;
    for (unsigned chosen = 0; chosen < (1U << a.size()); ++chosen) {
      std::size_t at = 0;
      std::size_t length = 0;
      bool common = true;
      for (std::size_t i = 0; i < a.size() && common; ++i) {
        if ((chosen >> i & 1U) == 0) {
          continue;
        }
        while (at < b.size() && b[at] != a[i]) {
          ++at;
        }
        common = at < b.size();
        ++at;
        ++length;
      }
      longest = common ? std::max(longest, length) : longest;
    }
    const double expected = a.empty() && b.empty() ? 1.0
                                                   : 2.0 * static_cast<double>(longest) /
                                                         static_cast<double>(a.size() + b.size());
    EXPECT_DOUBLE_EQ(rouge_l(a, b), expected);
    EXPECT_GE(token_f1(a, b), rouge_l(a, b) - 1e-12) << "ROUGE-L also demands the order";
  }
}

TEST(Overlap, SplitsWordsAndComputesF1) {
  EXPECT_EQ(words_of("The cat's  hat, 42!"),
            (std::vector<std::string>{"the", "cat", "s", "hat", "42"}));
  EXPECT_EQ(words_of("caf\xC3\xA9 au lait"),
            (std::vector<std::string>{"caf\xC3\xA9", "au", "lait"}));
  EXPECT_DOUBLE_EQ(token_f1(words_of("a b b c"), words_of("b a d")), 4.0 / 7.0);
  EXPECT_DOUBLE_EQ(token_f1({}, {}), 1.0);
  EXPECT_DOUBLE_EQ(token_f1(words_of("a"), {}), 0.0);
}

TEST(Schedule, ReadsWhatItWrites) {
  const auto schedule = parse_schedule("bf16:512,w4:1024,bf16:512");
  ASSERT_TRUE(schedule.ok());
  ASSERT_EQ(schedule->size(), 3U);
  EXPECT_EQ((*schedule)[1].precision, Precision::kW4);
  EXPECT_EQ((*schedule)[1].tokens, 1024);
  EXPECT_EQ(to_string(*schedule), "bf16:512,w4:1024,bf16:512");
}

TEST(Schedule, SaysWhatIsWrong) {
  for (const char* bad : {"", "bf16", "bf16:", "bf16:0", "bf16:-3", "bf16:12x", "w5:3", "bf16:1,",
                          ",bf16:1", "bf16:99999999999"}) {
    const auto schedule = parse_schedule(bad);
    ASSERT_FALSE(schedule.ok()) << bad;
    EXPECT_FALSE(schedule.error().message.empty());
  }
}

}  // namespace
}  // namespace protean
