#include "worker/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "worker/philox.h"

namespace protean {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(int vocab, double spread, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, static_cast<float>(spread));
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  std::generate(logits.begin(), logits.end(), [&] { return normal(random); });
  return logits;
}

TokenId sample_one(const std::vector<float>& logits, const SamplingParams& params, int position) {
  cpu::Team team(1);
  Sampler sampler(static_cast<int>(logits.size()), 1);
  const SampleSpec spec{params, position};
  TokenId token = -1;
  sampler.sample(team, {logits, {&spec, 1}, {}}, {&token, 1}, {});
  return token;
}

// Draws the tokens at positions [0, count) from the same row.
std::vector<TokenId> sample_many(const std::vector<float>& logits, const SamplingParams& params,
                                 int count) {
  cpu::Team team(1);
  Sampler sampler(static_cast<int>(logits.size()), 1);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (int position = 0; position < count; ++position) {
    const SampleSpec spec{params, position};
    sampler.sample(team, {logits, {&spec, 1}, {}}, {&tokens[static_cast<std::size_t>(position)], 1},
                   {});
  }
  return tokens;
}

struct Kept {
  TokenId id;
  double probability;
};

// Applies the filters one after another to a fully sorted distribution.
std::vector<Kept> naive_filter(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<Kept> kept;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    kept.push_back({static_cast<TokenId>(id), double{logits[id]} / params.temperature});
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Kept& a, const Kept& b) { return a.probability > b.probability; });
  const double top = kept.front().probability;
  for (Kept& k : kept) {
    k.probability = std::exp(k.probability - top);
  }
  const auto normalise = [&] {
    double sum = 0.0;
    for (const Kept& k : kept) {
      sum += k.probability;
    }
    for (Kept& k : kept) {
      k.probability /= sum;
    }
  };
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < kept.size()) {
    kept.resize(static_cast<std::size_t>(params.top_k));
  }
  normalise();
  if (params.top_p < 1.0F) {
    double sum = 0.0;
    std::size_t end = 0;
    while (end < kept.size() && (end == 0 || sum < double{params.top_p})) {
      sum += kept[end++].probability;
    }
    kept.resize(end);
  }
  std::erase_if(kept, [&, most = kept.front().probability](const Kept& k) {
    return k.probability < double{params.min_p} * most;
  });
  normalise();
  return kept;
}

TEST(Philox, MatchesThePublishedAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DrawsAreUniformAndDifferBySeedAndPosition) {
  double sum = 0.0;
  double squares = 0.0;
  constexpr int kDraws = 10000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform_draw(42, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kDraws, 1.0 / 2.0, 0.01);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3.0, 0.01);
  EXPECT_NE(uniform_draw(1, 7), uniform_draw(2, 7));
  EXPECT_NE(uniform_draw(1, 7), uniform_draw(std::uint64_t{1} << 32 | 1, 7));
}

TEST(Sampler, GreedyTakesTheBestAndTiesTheLowestId) {
  const SamplingParams greedy{.temperature = 0.0F};
  EXPECT_EQ(sample_one({0.5F, 2.0F, 1.0F, 2.0F}, greedy, 0), 1);
  EXPECT_EQ(sample_one({-3.0F, -3.0F}, greedy, 0), 0);
  EXPECT_EQ(sample_one({1.0F, 5.0F, 2.0F}, {.top_k = 1}, 0), 1);
}

TEST(Sampler, GreedyTiesTakeTheLowestIdOfAnyLongRow) {
  std::mt19937 random(6);
  for (const int vocab : {1, 2, 15, 16, 17, 40, 1023, 1024, 1025, 2048, 5000}) {
    for (int repeat = 0; repeat < 40; ++repeat) {
      std::vector<float> logits(static_cast<std::size_t>(vocab));
      const unsigned rare = 1 + random() % 3000;  // a logit is the largest once in so many
      for (float& logit : logits) {
        logit = random() % rare == 0 ? 3.0F : random() % 7 == 0 ? kNan : 1.0F;
      }
      std::size_t best = 0;
      for (std::size_t id = 0; id < logits.size(); ++id) {
        best = logits[id] > logits[best] || std::isnan(logits[best]) ? id : best;
      }
      best = std::isnan(logits[best]) ? 0 : best;
      ASSERT_EQ(sample_one(logits, {.temperature = 0.0F}, 0), static_cast<TokenId>(best)) << vocab;
    }
  }
}

TEST(Sampler, NotANumberIsNeverDrawnAndInfinityWins) {
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0.0F}, SamplingParams{}, SamplingParams{.top_k = 2},
        SamplingParams{.top_p = 0.9F}, SamplingParams{.min_p = 0.1F},
        SamplingParams{.top_k = 3, .top_p = 0.99F}}) {
    for (int position = 0; position < 50; ++position) {
      EXPECT_EQ(sample_one({kNan, -kInf, 0.0F, kNan}, params, position), 2);
      EXPECT_EQ(sample_one({1.0F, kInf, 5.0F, kNan}, params, position), 1);
      EXPECT_EQ(sample_one({kNan, kNan}, params, position), 0);
      EXPECT_EQ(sample_one({-kInf, -kInf}, params, position), 0);
    }
  }
}

TEST(Sampler, OddParametersStillDrawALegalToken) {
  const std::vector<float> logits = random_logits(100, 2.0, 3);
  const TokenId best = sample_one(logits, {.temperature = 0.0F}, 0);
  EXPECT_EQ(sample_one(logits, {.temperature = 1e-30F}, 0), best);
  EXPECT_EQ(sample_one(logits, {.temperature = -1.0F}, 0), best);
  EXPECT_EQ(sample_one(logits, {.top_p = 0.0F}, 0), best);
  EXPECT_EQ(sample_one(logits, {.top_p = -1.0F}, 0), best);
  EXPECT_EQ(sample_one(logits, {.min_p = 1.0F}, 0), best);
  EXPECT_EQ(sample_one(logits, {.min_p = 9.0F}, 0), best);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = kInf}, SamplingParams{.temperature = kNan},
        SamplingParams{.top_k = 1000000}, SamplingParams{.top_p = kNan},
        SamplingParams{.min_p = kNan}, SamplingParams{.top_k = -5}}) {
    const TokenId token = sample_one(logits, params, 1);
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 100);
  }
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> logits = random_logits(24, 1.5, 11);
  for (const SamplingParams& params :
       {SamplingParams{.seed = 1}, SamplingParams{.temperature = 0.6F, .seed = 2},
        SamplingParams{.temperature = 2.0F, .top_k = 10, .seed = 3},
        SamplingParams{.top_p = 0.8F, .seed = 4}, SamplingParams{.min_p = 0.15F, .seed = 5},
        SamplingParams{
            .temperature = 1.3F, .top_k = 15, .top_p = 0.9F, .min_p = 0.1F, .seed = 6}}) {
    constexpr int kDraws = 40000;
    std::vector<int> counts(logits.size());
    for (const TokenId token : sample_many(logits, params, kDraws)) {
      ++counts[static_cast<std::size_t>(token)];
    }
    const std::vector<Kept> kept = naive_filter(logits, params);
    double chi_square = 0.0;
    int expected_draws = 0;
    for (const Kept& k : kept) {
      const double expected = k.probability * kDraws;
      const int count = counts[static_cast<std::size_t>(k.id)];
      chi_square += (count - expected) * (count - expected) / expected;
      expected_draws += count;
    }
    EXPECT_EQ(expected_draws, kDraws) << "seed " << params.seed << " drew filtered tokens";
    const double freedom = static_cast<double>(kept.size()) - 1.0;
    EXPECT_LT(chi_square, freedom + 4.0 * std::sqrt(2.0 * freedom)) << "seed " << params.seed;
  }
}

// With the same uniform number and order of candidates, the token must be the naive one, unless the
// number is within rounding of a boundary.
TEST(Sampler, FastFiltersEqualTheNaiveOnes) {
  int compared = 0;
  for (const double spread : {0.0, 0.3, 2.0, 6.0}) {
    const std::vector<float> logits = random_logits(3000, spread, 5);
    for (const int top_k : {0, 2, 50, 1000, 2999}) {
      for (const float top_p : {0.1F, 0.9F, 0.9995F}) {
        for (const float min_p : {0.0F, 0.05F}) {
          const SamplingParams params{
              .temperature = 0.9F, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = 99};
          const std::vector<Kept> kept = naive_filter(logits, params);
          const std::vector<TokenId> tokens = sample_many(logits, params, 20);
          for (std::size_t position = 0; position < tokens.size(); ++position) {
            const double u = uniform_draw(params.seed, position);
            double before = 0.0;
            std::size_t at = 0;
            while (at + 1 < kept.size() && before + kept[at].probability <= u) {
              before += kept[at++].probability;
            }
            const double margin = std::min(u - before, before + kept[at].probability - u) * 3000.0;
            if (margin > 0.01) {
              ASSERT_EQ(tokens[position], kept[at].id)
                  << "spread " << spread << " k " << top_k << " p " << top_p << " min " << min_p;
              ++compared;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 2000);
}

// Without filters, the token is the one at which the sum of weights, in the order of ids, passes
// the random number.
TEST(Sampler, UnfilteredDrawsOfLongRowsEqualTheNaiveOnes) {
  int compared = 0;
  for (const int vocab : {1, 1023, 1024, 1025, 5000}) {
    for (const double spread : {0.0, 2.0, 8.0}) {
      std::vector<float> logits = random_logits(vocab, spread, 12);
      for (std::size_t id = 1; id < logits.size(); ++id) {
        // No token can be drawn from one inner block and from the last one.
        const bool never = (id >= 1024 && id < 2048) || id >= 4096;
        logits[id] = never ? (id % 2 == 0 ? kNan : -kInf) : logits[id];
      }
      const SamplingParams params{.temperature = 1.3F, .seed = 7};
      const float top = *std::max_element(logits.begin(), logits.begin() + std::min(vocab, 1024));
      std::vector<double> sums;  // of the weights up to each id, inclusive
      for (const float logit : logits) {
        const double weight =
            std::isfinite(logit) ? std::exp((double{logit} - top) / double{params.temperature}) : 0;
        sums.push_back((sums.empty() ? 0 : sums.back()) + weight);
      }
      const std::vector<TokenId> tokens = sample_many(logits, params, 60);
      for (std::size_t position = 0; position < tokens.size(); ++position) {
        const double target = uniform_draw(params.seed, position) * sums.back();
        const auto at = std::upper_bound(sums.begin(), sums.end(), target);
        const double margin = std::min(*at - target, at == sums.begin() ? target : target - at[-1]);
        if (margin > 1e-6 * sums.back()) {
          ASSERT_EQ(tokens[position], at - sums.begin()) << vocab << " spread " << spread;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 700);
}

TEST(Sampler, BatchThreadsAndOrderDoNotMatter) {
  constexpr int kVocab = 500;
  constexpr int kRows = 37;
  const std::vector<float> logits = random_logits(kVocab * kRows, 2.0, 8);
  std::vector<SampleSpec> specs;
  for (int i = 0; i < kRows; ++i) {
    const int top_k = i % 3 == 0 ? 40 : 0;
    const float top_p = i % 2 == 0 ? 0.95F : 1.0F;
    specs.push_back({{.top_k = top_k, .top_p = top_p, .seed = static_cast<std::uint64_t>(i)}, i});
  }
  std::vector<TokenId> alone;
  for (int i = 0; i < kRows; ++i) {
    const auto row = logits.begin() + i * kVocab;
    alone.push_back(sample_one({row, row + kVocab}, specs[static_cast<std::size_t>(i)].params, i));
  }
  for (const int threads : {1, 3}) {
    cpu::Team team(threads);
    Sampler sampler(kVocab, threads);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<TokenId> together(kRows);
      sampler.sample(team, {logits, specs, {}}, together, {});
      EXPECT_EQ(together, alone);
    }
  }
}

}  // namespace
}  // namespace protean
