#include "control/morph_policy.h"

#include <gtest/gtest.h>

#include <array>

#include "control/queue_model_for_test.h"

namespace protean {
namespace {

// Poisson arrivals at a rate that changes with time, up to `until`.
template <class Rate>
std::vector<Arriving> arrivals(Rate rate_per_s, TimeNs until_ns, unsigned seed) {
  std::mt19937 random(seed);
  const auto uniform = [&] { return (static_cast<double>(random()) + 0.5) / 4294967296.0; };
  std::vector<Arriving> load;
  constexpr double kMost = 200;  // thinned
  for (double at_s = 0; at_s * kNsPerS < static_cast<double>(until_ns);) {
    at_s -= std::log(uniform()) / kMost;
    if (uniform() * kMost < rate_per_s(at_s)) {
      load.push_back({static_cast<TimeNs>(at_s * kNsPerS), 64 + static_cast<int>(uniform() * 384),
                      32 + static_cast<int>(uniform() * 192)});
    }
  }
  return load;
}

std::vector<Arriving> square_wave(double period_s, double high, double low, int periods,
                                  unsigned seed) {
  return arrivals(
      [=](double at_s) { return std::fmod(at_s, period_s) < period_s / 2 ? high : low; },
      static_cast<TimeNs>(period_s * periods * kNsPerS), seed);
}

// From the moment after a fall at which all demand would fit the first form until that is reached,
// where the next rise leaves the time.
std::vector<double> restores_s(const Played& played, double period_s, int periods) {
  std::vector<double> found;
  for (int i = 0; i < periods; ++i) {
    const auto fall_ns = static_cast<TimeNs>((i + 0.5) * period_s * kNsPerS);
    const auto interval =
        std::find_if(played.lowered.begin(), played.lowered.end(), [&](const auto& lowered) {
          return lowered.from_ns <= fall_ns && (lowered.until_ns < 0 || lowered.until_ns > fall_ns);
        });
    const auto fits = std::find_if(played.fits_ns.begin(), played.fits_ns.end(),
                                   [&](TimeNs at_ns) { return at_ns > fall_ns; });
    const auto rise_ns = fall_ns + static_cast<TimeNs>(period_s / 2 * kNsPerS);
    const bool in_time = fits != played.fits_ns.end() && *fits + 10 * kNsPerS < rise_ns;
    if (interval != played.lowered.end() && in_time) {
      const TimeNs begun_ns = *fits > interval->until_ns ? fall_ns : *fits;
      found.push_back(static_cast<double>(interval->until_ns - begun_ns) / 1e9);
    }
  }
  return found;
}

constexpr std::array kPeriodsS = {1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 60.0};
constexpr std::size_t kOfEachPeriod = 2;  // at least
constexpr double kLeastS = 30;

struct Wave {
  double high = 0;  // per second; full precision carries some 18
  double low = 0;
  double period_s = 0;

  int periods() const { return std::max(2, static_cast<int>(kLeastS / period_s)); }
  std::vector<Arriving> load() const {
    return square_wave(period_s, high, low, periods(), static_cast<unsigned>(high * period_s));
  }
};
constexpr std::array kHeights = {Wave{20, 1}, Wave{30, 1}, Wave{45, 1},
                                 Wave{20, 6}, Wave{30, 6}, Wave{45, 6}};

// All periods and all heights; each with each where the periods are so long that precision comes
// back in each.
template <class Check>
void for_each_wave(Check check_one) {
  std::size_t height = 0;
  for (const double period_s : kPeriodsS) {
    const std::size_t count = period_s < 30 ? kOfEachPeriod : kHeights.size();
    for (std::size_t i = 0; i < count; ++i) {
      Wave wave = kHeights[height % kHeights.size()];
      height += i + 1 == count ? 3 : 1;
      wave.period_s = period_s;
      SCOPED_TRACE(fmt::format("{} to {} per s, period {} s", wave.low, wave.high, period_s));
      check_one(wave);
    }
  }
}

Played play(const PolicyOptions& options, const std::vector<Arriving>& load, bool morphs = true) {
  return QueueModel(bounds_for_test(16, 0.4), options, {}, morphs).play(load, 30 * kNsPerS);
}

PolicyOptions paper_rule(PolicyOptions options) {
  options.rule = MorphRule::kPaper;
  return options;
}

class SquareWaves : public ::testing::TestWithParam<std::tuple<MorphMode, FewerBits>> {};

TEST_P(SquareWaves, CauseAtMostOneCycleEachFewerSwapsThanThePapersRuleAndAreSoonOver) {
  const auto [mode, fewer_bits] = GetParam();
  const PolicyOptions options = options_where(mode, fewer_bits);
  int cycles = 0;
  int papers_cycles = 0;
  int swaps = 0;
  int papers_swaps = 0;
  int restored = 0;
  for_each_wave([&](const Wave& wave) {
    const Played own = play(options, wave.load());
    const Played papers = play(paper_rule(options), wave.load());
    EXPECT_LE(own.lowerings, wave.periods());
    // At load that the paper's rule hardly sees, going all the way once is more.
    const bool all_the_way_once = options.shortest_step == 1 && own.lowerings == 1;
    constexpr int kOneDeeper =
        3;  // both rules now and then end so, a layer or with it the embeddings
    EXPECT_TRUE(own.swaps <= papers.swaps * 11 / 10 + kOneDeeper || all_the_way_once)
        << own.swaps << " of " << papers.swaps;
    EXPECT_TRUE(own.lowered.empty() || own.lowered.back().until_ns >= 0) << "for ever";
    // In waves of shorter periods pressure comes back before.
    const auto restores = restores_s(own, wave.period_s, wave.periods());
    for (const double restore_s : restores) {
      EXPECT_LE(restore_s, 10);
    }
    restored += wave.period_s < 30 ? 0 : static_cast<int>(restores.size());
    cycles += own.lowerings;
    papers_cycles += papers.lowerings;
    swaps += own.swaps;
    papers_swaps += papers.swaps;
  });
  RecordProperty("found", fmt::format("{} cycles of {}, {} swaps of {}, {} restored", cycles,
                                      papers_cycles, swaps, papers_swaps, restored));
  EXPECT_LT(2 * swaps, papers_swaps);
  EXPECT_GT(cycles, 30) << "it does act";
  EXPECT_GT(papers_cycles, 3 * cycles);
  EXPECT_GT(restored, 8);
}

std::string wave_name(const testing::TestParamInfo<SquareWaves::ParamType>& of) {
  const auto [mode, fewer_bits] = of.param;
  const char* const names[] = {"", "_faster_to_eight", "_faster"};
  return fmt::format("{}{}", to_string(mode), names[static_cast<int>(fewer_bits)]);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, SquareWaves,
    ::testing::Combine(
        ::testing::Values(MorphMode::kAccuracy, MorphMode::kBalanced, MorphMode::kPerformance),
        ::testing::Values(FewerBits::kNotFaster, FewerBits::kFasterToEight, FewerBits::kFaster)),
    wave_name);

TEST(MorphPolicy, ModesTradeWaitingForBits) {
  const auto load = square_wave(30, 26, 3, 4, 5);
  const Played off = play({}, load, false);
  const Played accuracy = play(options_for(MorphMode::kAccuracy), load);
  const Played balanced = play(options_for(MorphMode::kBalanced), load);
  const Played performance = play(options_for(MorphMode::kPerformance), load);
  EXPECT_LT(accuracy.lost_bits_s, balanced.lost_bits_s);
  EXPECT_LT(balanced.lost_bits_s, performance.lost_bits_s);
  EXPECT_EQ(accuracy.w4_s, 0);
  EXPECT_LT(performance.ttft_p95_s(), balanced.ttft_p95_s());
  EXPECT_LT(balanced.ttft_p95_s(), accuracy.ttft_p95_s());
  EXPECT_LT(4 * balanced.ttft_p95_s(), off.ttft_p95_s());
}

TEST(MorphPolicy, LoadThatFullPrecisionCarriesLeavesItAlone) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    const Played played = play(options_for(MorphMode::kBalanced),
                               arrivals([](double) { return 9; }, 60 * kNsPerS, seed));
    EXPECT_EQ(played.swaps, 0);
  }
}

// What only fewer bits carry is tried at full precision when it has been forgotten, not before.
TEST(MorphPolicy, ASteadyOverloadIsNotFollowedUpAndDown) {
  const PolicyOptions options = options_for(MorphMode::kBalanced);
  for (const double rate : {22.0, 40.0}) {
    const auto until = [&](TimeNs until_ns) {
      return play(options, arrivals([&](double) { return rate; }, until_ns, 9)).lowerings;
    };
    EXPECT_EQ(until(options.load_memory_ns * 9 / 10), 1) << rate;
    EXPECT_LE(until(options.load_memory_ns * 3), 3) << rate;
  }
}

// Whatever comes after a burst, as long as full precision carries it.
TEST(MorphPolicy, ABurstEndsThoughLoadGoesOn) {
  for (const double later : {0.5, 4.0, 9.0}) {
    const Played played =
        play(options_for(MorphMode::kBalanced),
             arrivals([&](double at_s) { return at_s > 20 && at_s < 30 ? 40 : later; },
                      80 * kNsPerS, 3));
    ASSERT_EQ(played.lowered.size(), 1U) << later;
    EXPECT_GT(played.lowered[0].from_ns, 20 * kNsPerS);
    EXPECT_LT(played.lowered[0].until_ns, 48 * kNsPerS) << later;
  }
}

TEST(MorphPolicy, AForecastActsBeforeTheQueueForms) {
  const auto load =
      arrivals([](double at_s) { return std::min(1.2 * at_s, 30.0); }, 60 * kNsPerS, 11);
  PolicyOptions options = options_for(MorphMode::kBalanced);
  const Played without = play(options, load);
  options.forecast_ns = kNsPerS;
  const Played with = play(options, load);
  ASSERT_FALSE(without.lowered.empty());
  ASSERT_FALSE(with.lowered.empty());
  EXPECT_LT(with.lowered[0].from_ns, without.lowered[0].from_ns);
  EXPECT_LT(with.ttft_p95_s(), 1.1 * without.ttft_p95_s());
}

TEST(MorphPolicy, TheSameLoadLeadsToTheSameDecisions) {
  const auto load = square_wave(8, 30, 2, 8, 2);
  const Played first = play(options_for(MorphMode::kBalanced), load);
  EXPECT_FALSE(first.log.empty());
  EXPECT_EQ(first.log, play(options_for(MorphMode::kBalanced), load).log);
}

// At last nobody waits for a place, but some still for their prompts: at full precision they would
// for longer.
TEST(MorphPolicy, ABurstIsNotOverBeforeItIsComputed) {
  const Machine slow{.token_ns = 1e6, .max_num_seqs = 16, .max_step_tokens = 128};
  const FormBounds bounds = bounds_for_test(16, 0.8);
  for (unsigned seed = 0; seed < 5; ++seed) {
    const auto load = arrivals([](double at_s) { return at_s > 20 && at_s < 35 ? 4.5 : 1.0; },
                               90 * kNsPerS, seed);
    const Played played =
        QueueModel(bounds, options_where(MorphMode::kBalanced, FewerBits::kFasterToEight), slow)
            .play(load, 30 * kNsPerS);
    EXPECT_EQ(played.lowered.size(), 1U);
    EXPECT_EQ(played.log.size(), 2U) << "down and up";
  }
}

// Each takes 0.9 s, more than a queue may.
TEST(MorphPolicy, LongPromptsOneAtATimeDoNotHoldUpFullPrecision) {
  const Machine slow{.token_ns = 1e6, .max_num_seqs = 16, .max_step_tokens = 128};
  auto load =
      arrivals([](double at_s) { return at_s > 5 && at_s < 15 ? 5.0 : 0.0; }, 20 * kNsPerS, 3);
  for (TimeNs at_ns = 16 * kNsPerS; at_ns < 60 * kNsPerS; at_ns += 3 * kNsPerS) {
    load.push_back({at_ns, 900, 8});
  }
  const Played played =
      QueueModel(bounds_for_test(16, 0.8),
                 options_where(MorphMode::kBalanced, FewerBits::kFasterToEight), slow)
          .play(load, 0);
  ASSERT_EQ(played.lowered.size(), 1U);
  EXPECT_GT(played.lowered[0].until_ns, 0);
  EXPECT_LT(played.lowered[0].until_ns, 45 * kNsPerS);
}

}  // namespace
}  // namespace protean
