// Checks penalties, rules, constraints and logprobs against a slow implementation of their
// definitions in double precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "worker/philox.h"
#include "worker/sampler.h"

namespace protean {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Allows the tokens that a function of the answer returns, and counts its calls.
class FunctionConstraint : public TokenConstraint {
 public:
  using Allowed = std::function<bool(std::span<const TokenId> answer, TokenId token)>;
  FunctionConstraint(int vocab, Allowed allowed) : vocab_(vocab), allowed_(std::move(allowed)) {}

  void allowed_after(std::span<const TokenId> answer, TokenMask mask) override {
    ++asked;
    ASSERT_EQ(mask.size(), token_mask_words(vocab_));
    std::fill(mask.begin(), mask.end(), 0);
    for (TokenId token = 0; token < vocab_; ++token) {
      if (allowed_(answer, token)) {
        const auto id = static_cast<std::size_t>(token);
        mask[id / 64] |= std::uint64_t{1} << (id % 64);
      }
    }
    if (vocab_ % 64 != 0) {
      mask.back() |= ~std::uint64_t{0}
                     << (vocab_ % 64);  // bits beyond the vocabulary have no meaning
    }
  }

  int asked = 0;

 private:
  int vocab_;
  Allowed allowed_;
};

// A draw and everything that it depends on.
struct Scene {
  std::vector<float> logits;
  SampleSpec spec;
  std::vector<TokenId> history;

  std::span<const TokenId> answer() const {
    return std::span(history).subspan(static_cast<std::size_t>(spec.prompt_count));
  }
};

struct Drawn {
  TokenId token = -1;
  TokenLogprobs logprobs;
};

Drawn draw(const Scene& scene) {
  cpu::Team team(1);
  Sampler sampler(static_cast<int>(scene.logits.size()), 1);
  Drawn drawn;
  sampler.sample(team, {scene.logits, {&scene.spec, 1}, scene.history}, {&drawn.token, 1},
                 {&drawn.logprobs, 1});
  return drawn;
}

constexpr double kNever = -std::numeric_limits<double>::infinity();

std::vector<double> naive_penalties(const Scene& scene) {
  const SamplingParams& params = scene.spec.params;
  std::vector<double> row(scene.logits.begin(), scene.logits.end());
  for (const TokenId seen : std::set<TokenId>(scene.history.begin(), scene.history.end())) {
    double& logit = row[static_cast<std::size_t>(seen)];
    logit = logit < 0 ? logit * double{params.repetition_penalty}
                      : logit / double{params.repetition_penalty};
  }
  std::map<TokenId, int> counts;
  for (const TokenId token : scene.answer()) {
    ++counts[token];
  }
  for (const auto& [token, count] : counts) {
    row[static_cast<std::size_t>(token)] -=
        double{params.presence_penalty} + count * double{params.frequency_penalty};
  }
  if (scene.spec.rules != nullptr) {
    for (const TokenBias& bias : scene.spec.rules->bias) {
      row[static_cast<std::size_t>(bias.token)] += double{bias.bias};
    }
  }
  return row;
}

bool completes_bad_word(const Scene& scene, TokenId token) {
  std::vector<TokenId> longer(scene.answer().begin(), scene.answer().end());
  longer.push_back(token);
  return std::any_of(scene.spec.rules->bad_words.begin(), scene.spec.rules->bad_words.end(),
                     [&](const std::vector<TokenId>& word) {
                       return word.size() <= longer.size() &&
                              std::equal(word.rbegin(), word.rend(), longer.rbegin());
                     });
}

// Returns all tokens that may be drawn, with their edited logits. If none is left, bans of stop ids
// are dropped first, then the rules (with a constraint) or the bad words (without).
std::map<TokenId, double> naive_choice(const Scene& scene, const FunctionConstraint::Allowed& may) {
  const std::vector<double> row = naive_penalties(scene);
  const TokenRules* rules = scene.spec.rules.get();
  for (const int strictness : {2, 1, 0}) {
    std::map<TokenId, double> choice;
    for (TokenId token = 0; token < std::ssize(row); ++token) {
      const bool listed = rules == nullptr || rules->allowed.empty() ||
                          std::count(rules->allowed.begin(), rules->allowed.end(), token) > 0;
      const bool bad = rules != nullptr && completes_bad_word(scene, token);
      const auto& banned = scene.spec.banned;
      const bool stopped = std::count(banned.begin(), banned.end(), token) > 0;
      const bool holds = (strictness == 0 && may ? true : listed) && (strictness == 0 || !bad) &&
                         (strictness < 2 || !stopped) && (!may || may(scene.answer(), token));
      const double logit = row[static_cast<std::size_t>(token)];
      if (holds && logit > kNever) {
        choice.emplace(token, logit);
      }
    }
    if (!choice.empty()) {
      return choice;
    }
  }
  return {};
}

class RandomScene {
 public:
  explicit RandomScene(unsigned seed) : random_(seed) {}

  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  Scene scene(int vocab) {
    Scene made;
    std::normal_distribution<float> normal(0.0F, 2.0F);
    for (int i = 0; i < vocab; ++i) {
      made.logits.push_back(normal(random_));
    }
    made.spec.params.temperature = 0.0F;
    if (below(3) > 0) {
      made.spec.params.repetition_penalty = 0.5F + 0.1F * static_cast<float>(below(15));
      made.spec.params.presence_penalty = 0.1F * static_cast<float>(below(40) - 20);
      made.spec.params.frequency_penalty = 0.1F * static_cast<float>(below(40) - 20);
    }
    made.history = tokens(1 + below(30), vocab);
    made.spec.prompt_count = 1 + below(static_cast<int>(made.history.size()));
    made.spec.position = static_cast<int>(made.history.size());
    if (below(2) == 0) {
      made.spec.rules = rules(made, vocab);
    }
    if (below(3) == 0) {
      made.spec.banned = tokens(1 + below(3), vocab);
    }
    return made;
  }

 private:
  std::vector<TokenId> tokens(int count, int vocab) {
    std::vector<TokenId> made;
    for (int i = 0; i < count; ++i) {
      made.push_back(below(vocab));
    }
    return made;
  }

  std::shared_ptr<const TokenRules> rules(const Scene& scene, int vocab) {
    TokenRules made;
    for (int i = below(4); i > 0; --i) {
      made.bias.push_back({below(vocab), static_cast<float>(below(201) - 100) * 0.1F});
    }
    if (below(2) == 0) {
      const std::vector<TokenId> some = tokens(1 + below(8), vocab);
      const std::set<TokenId> ascending(some.begin(), some.end());
      made.allowed.assign(ascending.begin(), ascending.end());
    }
    for (int i = below(8); i > 0; --i) {
      std::vector<TokenId> word = tokens(1, vocab);
      const auto answer = scene.answer();
      const auto before = static_cast<std::size_t>(below(3));
      if (before <= answer.size()) {
        word.insert(word.begin(), answer.end() - static_cast<std::ptrdiff_t>(before), answer.end());
      }
      made.bad_words.push_back(std::move(word));
    }
    return std::make_shared<const TokenRules>(std::move(made));
  }

  std::mt19937 random_;
};

void attach_history(Scene& scene) {
  scene.spec.history_begin = 0;
  scene.spec.history_count = static_cast<int>(scene.history.size());
}

TEST(SamplerRules, GreedyTakesTheBestOfWhatIsLeft) {
  int relaxed = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    RandomScene random(seed);
    const int vocab = 2 + random.below(150);
    Scene scene = random.scene(vocab);
    attach_history(scene);
    FunctionConstraint::Allowed may;
    if (random.below(3) == 0) {
      const int every = 1 + random.below(40);
      may = [every](std::span<const TokenId> answer, TokenId token) {
        return (token + std::ssize(answer)) % every == 0;
      };
      scene.spec.constraint = std::make_shared<FunctionConstraint>(vocab, may);
    }
    const auto choice = naive_choice(scene, may);
    relaxed += choice.size() == 1 ? 1 : 0;
    const TokenId token = draw(scene).token;
    if (choice.empty()) {
      continue;
    }
    ASSERT_TRUE(choice.contains(token)) << "seed " << seed << " drew what is excluded";
    for (const auto& [other, logit] : choice) {
      ASSERT_LE(logit, choice.at(token) + 1e-5) << "seed " << seed << ", token " << other;
    }
  }
  EXPECT_GT(relaxed, 100);
}

// A value that chi-square exceeds once in 30,000 times (Wilson and Hilferty's approximation).
double unlikely_chi_square(double freedom) {
  const double variance = 2.0 / (9.0 * freedom);
  return freedom * std::pow(1.0 - variance + 4.0 * std::sqrt(variance), 3.0);
}

TEST(SamplerRules, DrawsFollowTheEditedDistribution) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    RandomScene random(seed + 100);
    Scene scene = random.scene(24);
    attach_history(scene);
    scene.spec.params.temperature = 1.3F;
    scene.spec.params.seed = seed;
    FunctionConstraint::Allowed may;
    if (seed % 2 == 0) {
      may = [](std::span<const TokenId>, TokenId token) { return token % 3 != 0; };
      scene.spec.constraint = std::make_shared<FunctionConstraint>(24, may);
    }
    const auto choice = naive_choice(scene, may);
    double total = 0.0;
    for (const auto& [token, logit] : choice) {
      total += std::exp(logit / 1.3);
    }
    constexpr int kDraws = 80000;
    std::map<TokenId, int> counts;
    cpu::Team team(1);
    Sampler sampler(24, 1);
    for (int i = 0; i < kDraws; ++i) {
      scene.spec.position = i;
      TokenId token = -1;
      sampler.sample(team, {scene.logits, {&scene.spec, 1}, scene.history}, {&token, 1}, {});
      ++counts[token];
    }
    double chi_square = 0.0;
    double freedom = -1.0;
    double rare = 0.0;  // the tokens too unlikely for the test, as one class
    int rare_count = 0;
    for (const auto& [token, logit] : choice) {
      const double expected = kDraws * std::exp(logit / 1.3) / total;
      if (expected < 8) {
        rare += expected;
        rare_count += counts[token];
      } else {
        chi_square += (counts[token] - expected) * (counts[token] - expected) / expected;
        freedom += 1.0;
      }
      counts.erase(token);
    }
    for (const auto& [token, count] : counts) {
      EXPECT_EQ(count, 0) << "seed " << seed << " drew excluded token " << token;
    }
    EXPECT_LT(std::abs(rare_count - rare), 5.0 * std::sqrt(rare + 1.0)) << "seed " << seed;
    if (freedom > 0) {
      EXPECT_LT(chi_square, unlikely_chi_square(freedom)) << "seed " << seed;
    }
  }
}

TEST(SamplerRules, PenaltiesCountPromptAndAnswerApart) {
  Scene scene{.logits = {5.0F, 4.0F, 3.0F, -1.0F}, .spec = {}, .history = {0, 0, 1}};
  scene.spec.params.temperature = 0.0F;
  scene.spec.prompt_count = 2;
  attach_history(scene);
  EXPECT_EQ(draw(scene).token, 0);
  scene.spec.params.presence_penalty = 10.0F;  // applies to token 1 of the answer
  EXPECT_EQ(draw(scene).token, 0);
  scene.spec.prompt_count = 0;
  EXPECT_EQ(draw(scene).token, 2);
  scene.spec.params = {.temperature = 0.0F, .frequency_penalty = 0.9F};  // 5 - 1.8, 4 - 0.9, 3
  EXPECT_EQ(draw(scene).token, 0);
  scene.spec.params.frequency_penalty = 1.01F;  // 2.98, 2.99, 3
  EXPECT_EQ(draw(scene).token, 2);
  scene.spec.params = {.temperature = 0.0F, .repetition_penalty = 2.0F};  // 2.5, 2, 3
  scene.spec.prompt_count = 3;
  EXPECT_EQ(draw(scene).token, 2);
  scene.logits = {-2.0F, -2.5F, -3.0F, -5.0F};  // -4, -5, -3, -5: a negative logit shrinks too
  EXPECT_EQ(draw(scene).token, 2);
}

TEST(SamplerRules, BansAreDroppedInOrderAndAConstraintNever) {
  Scene scene{.logits = {3.0F, 2.0F, 1.0F, 0.0F}, .spec = {}, .history = {}};
  scene.spec.params.temperature = 0.0F;
  scene.spec.banned = {0};
  EXPECT_EQ(draw(scene).token, 1);
  TokenRules rules{.bias = {{0, -100.0F}, {1, -100.0F}}};
  scene.spec.rules = std::make_shared<const TokenRules>(rules);
  EXPECT_EQ(draw(scene).token, 2);
  rules.allowed = {0, 1};  // a bias does not overrule a ban while another token is left
  scene.spec.rules = std::make_shared<const TokenRules>(rules);
  EXPECT_EQ(draw(scene).token, 1);
  rules.allowed = {0};
  scene.spec.rules = std::make_shared<const TokenRules>(rules);
  EXPECT_EQ(draw(scene).token, 0) << "the ban of a stop id is dropped first";
  rules.bad_words = {{0}};
  scene.spec.rules = std::make_shared<const TokenRules>(rules);
  EXPECT_EQ(draw(scene).token, 0) << "then bad words";
  const auto only = [&](TokenId one) {
    return std::make_shared<FunctionConstraint>(
        4, [one](std::span<const TokenId>, TokenId token) { return token == one; });
  };
  for (TokenId one = 0; one < 4; ++one) {
    scene.spec.constraint = only(one);
    scene.spec.banned = {one};
    EXPECT_EQ(draw(scene).token, one) << "a constraint is never dropped";
    EXPECT_EQ(std::static_pointer_cast<FunctionConstraint>(scene.spec.constraint)->asked, 1);
  }
  scene.logits = {kNan, kNan, -kInf, kNan};
  EXPECT_EQ(draw(scene).token, 3) << "not even if all logits are NaN";
  scene.spec.constraint = nullptr;
  rules = {.allowed = {2, 3}};
  scene.spec.rules = std::make_shared<const TokenRules>(rules);
  EXPECT_EQ(draw(scene).token, 2);
}

TEST(SamplerRules, TokensThatDoNotExistCannotBeDrawn) {
  Scene scene{.logits = {0.0F, 1.0F}, .spec = {}, .history = {}};
  scene.spec.params.temperature = 0.0F;
  scene.spec.banned = {-1, 2, 1 << 30};
  scene.spec.rules = std::make_shared<const TokenRules>(
      TokenRules{.bias = {{2, 5.0F}, {-7, 5.0F}}, .allowed = {0, 1, 99}, .bad_words = {{5}, {}}});
  EXPECT_EQ(draw(scene).token, 1);
}

TEST(SamplerRules, LogprobsAreTheModelsOwn) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomScene random(seed);
    const int vocab = 1 + random.below(300);
    Scene scene = random.scene(vocab);
    attach_history(scene);
    scene.spec.params.temperature = seed % 2 == 0 ? 0.0F : 0.7F;
    scene.spec.top_logprobs = random.below(25);
    if (seed % 3 == 0) {  // ties and NaN
      for (float& logit : scene.logits) {
        logit = random.below(20) == 0 ? kNan : std::round(logit);
      }
    }
    const Drawn drawn = draw(scene);
    std::vector<double> row(scene.logits.begin(), scene.logits.end());
    double sum = 0.0;
    for (double& logit : row) {
      logit = std::isnan(logit) ? kNever : logit;
      sum += std::exp(logit);
    }
    std::vector<TokenId> order(row.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<TokenId>(i);
    }
    const auto logprob = [&](TokenId token) {
      return row[static_cast<std::size_t>(token)] - std::log(sum);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](TokenId a, TokenId b) { return logprob(a) > logprob(b); });
    if (logprob(drawn.token) == kNever) {
      continue;
    }
    ASSERT_NEAR(drawn.logprobs.logprob, logprob(drawn.token), 2e-6) << seed;
    ASSERT_EQ(order.at(static_cast<std::size_t>(drawn.logprobs.rank) - 1), drawn.token) << seed;
    const auto& top = drawn.logprobs.top;
    ASSERT_LE(top.size(), static_cast<std::size_t>(scene.spec.top_logprobs));
    for (std::size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].token, order[i]) << seed;
      ASSERT_NEAR(top[i].logprob, logprob(order[i]), 2e-6) << seed;
    }
    const auto finite = std::count_if(row.begin(), row.end(), [](double l) { return l > kNever; });
    ASSERT_EQ(std::ssize(top), std::min<std::ptrdiff_t>(finite, scene.spec.top_logprobs)) << seed;
  }
}

TEST(SamplerRules, ScoresTellWholeRows) {
  const std::vector<float> logits = {0.0F, 1.0F, 3.0F, kInf, 2.0F, 2.0F};
  cpu::Team team(2);
  Sampler sampler(3, 2);
  const std::vector<ScoreSpec> specs = {{.token = 1, .top_logprobs = 1, .whole_row = true},
                                        {.token = 2}};
  std::vector<TokenLogprobs> scored(2);
  sampler.score(team, logits, specs, scored);
  const double log_sum = std::log(1.0 + std::exp(1.0) + std::exp(3.0));
  EXPECT_NEAR(scored[0].logprob, 1.0 - log_sum, 1e-6);
  EXPECT_EQ(scored[0].rank, 2);
  ASSERT_EQ(scored[0].top.size(), 1U);
  EXPECT_EQ(scored[0].top[0].token, 2);
  ASSERT_EQ(scored[0].row.size(), 3U);
  EXPECT_NEAR(scored[0].row[0], -log_sum, 1e-6);
  EXPECT_EQ(scored[0].row[1], scored[0].logprob);
  EXPECT_TRUE(scored[1].row.empty());
  EXPECT_EQ(scored[1].logprob, -kInf);  // an infinite logit takes all probability
  EXPECT_EQ(scored[1].rank, 3);
}

TEST(SamplerRules, BatchThreadsAndOrderDoNotMatter) {
  constexpr int kVocab = 130;
  constexpr int kRows = 41;
  std::vector<float> logits;
  std::vector<SampleSpec> specs;
  std::vector<TokenId> history;
  std::vector<Drawn> alone;
  RandomScene random(5);
  for (int i = 0; i < kRows; ++i) {
    Scene scene = random.scene(kVocab);
    attach_history(scene);
    scene.spec.params.temperature = 1.0F;
    scene.spec.top_logprobs = i % 4 - 1;
    if (i % 3 == 0) {
      scene.spec.constraint = std::make_shared<FunctionConstraint>(
          kVocab, [i](std::span<const TokenId>, TokenId token) { return token % 7 == i % 7; });
    }
    alone.push_back(draw(scene));
    logits.insert(logits.end(), scene.logits.begin(), scene.logits.end());
    scene.spec.history_begin = static_cast<int>(history.size());
    history.insert(history.end(), scene.history.begin(), scene.history.end());
    specs.push_back(scene.spec);
  }
  for (const int threads : {1, 3}) {
    cpu::Team team(threads);
    Sampler sampler(kVocab, threads);
    std::vector<TokenId> tokens(kRows);
    std::vector<TokenLogprobs> logprobs(kRows);
    sampler.sample(team, {logits, specs, history}, tokens, logprobs);
    for (std::size_t i = 0; i < kRows; ++i) {
      EXPECT_EQ(tokens[i], alone[i].token) << i;
      EXPECT_EQ(logprobs[i].logprob, alone[i].logprobs.logprob) << i;
      EXPECT_EQ(logprobs[i].rank, alone[i].logprobs.rank) << i;
      EXPECT_EQ(logprobs[i].top.size(), alone[i].logprobs.top.size()) << i;
    }
  }
}

}  // namespace
}  // namespace protean
