#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "control/monitor.h"
#include "control/morph_policy.h"
#include "control/scene_for_test.h"

namespace protean {
namespace {

// Decisions one at a time, from signals made up.
class Decide : public ::testing::Test {
 protected:
  Decide() {
    signals_.now = {.running = 8,
                    .waiting = 5,
                    .oldest_wait_ns = 300 * kNsPerMs,
                    .kv_blocks = full_.kv.blocks,
                    .kv_blocks_used = full_.kv.blocks};
    signals_.pressed_share = 1;
    signals_.pressed_samples = 10;
  }
  std::size_t place(const Form& form) const {
    const auto& path = policy_.path();
    return static_cast<std::size_t>(std::find(path.begin(), path.end(), form) - path.begin());
  }
  void only_queue_presses() {
    signals_.pressed_share = 0;
    signals_.queued_share = 1;
    signals_.now.expected_wait_ns = signals_.expected_wait_ns = kNsPerS;
    signals_.now.kv_blocks_used = 1;
  }
  void quiet_at(const Form& form, double share_of_full_used) {
    signals_ = {};
    signals_.now.kv_blocks = form.kv.blocks;
    signals_.demand_max = share_of_full_used * static_cast<double>(full_.kv.blocks);
    signals_.now.kv_blocks_used = static_cast<std::int64_t>(signals_.demand_max);
  }

  const FormBounds bounds_ = bounds_for_test(16, 0.4);
  const MorphPolicy policy_{options_for(MorphMode::kBalanced), bounds_};
  const Form full_ = policy_.path().front();
  Signals signals_;
};

TEST_F(Decide, GoesAsFarAsBlocksAreMissing) {
  signals_.now.blocks_wanted = 20;
  const auto little = policy_.decide(signals_, full_);
  signals_.now.blocks_wanted = 120;
  const auto much = policy_.decide(signals_, full_);
  ASSERT_TRUE(little && much);
  EXPECT_LT(place(little->form), place(much->form));
  const auto demand = static_cast<double>(signals_.now.kv_blocks_used + 120);
  const auto blocks = [&](std::size_t at) {
    return static_cast<double>(policy_.path()[at].kv.blocks);
  };
  EXPECT_LE(demand, blocks(place(much->form)));
  EXPECT_GT(demand, blocks(place(much->form) - 1));
  for (const LayerPrecision& layer : much->form.layer_precision) {
    EXPECT_NE(layer.mlp, Precision::kW4) << "w8 is enough";
  }
  EXPECT_NE(much->reason.find("120 wanted"), std::string::npos) << much->reason;
}

TEST_F(Decide, NeedsBothAFullCacheAndAQueueThatIsStillThere) {
  signals_.pressed_share = 0.7;
  EXPECT_FALSE(policy_.decide(signals_, full_));
  signals_.pressed_share = 1;
  signals_.pressed_samples = 0;  // over, as of the latest sample
  EXPECT_FALSE(policy_.decide(signals_, full_));
}

TEST_F(Decide, AQueueAloneIsAReasonWhereTheModeSaysSo) {
  signals_.pressed_share = 0;
  signals_.queued_share = 1;
  const auto wanted = policy_.decide(signals_, full_);
  ASSERT_TRUE(wanted);
  EXPECT_FALSE(wanted->aim.faster_steps);
  Monitor accuracy(options_for(MorphMode::kAccuracy));
  for (TimeNs at_ns = 0; at_ns < 20 * kNsPerS; at_ns += 50 * kNsPerMs) {
    accuracy.sample({.at_ns = at_ns, .waiting = 3, .oldest_wait_ns = at_ns, .kv_blocks = 100});
  }
  EXPECT_EQ(accuracy.signals(20 * kNsPerS).queued_share, 0);
}

TEST_F(Decide, WhereFewerBitsAreFasterAQueueAloneIsAReasonToLowerAllLayersToEightBits) {
  only_queue_presses();
  const MorphPolicy faster(options_where(MorphMode::kBalanced, FewerBits::kFaster), bounds_);
  const auto wanted = faster.decide(signals_, full_);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(layers_at(wanted->form, Precision::kW8), 16);
  EXPECT_TRUE(wanted->aim.faster_steps);
  EXPECT_EQ(wanted->aim.idle_blocks, full_.kv.blocks - 1 - 8) << "each that runs may need one more";
  // Further down for a longer queue, a step at a time.
  signals_.long_wait_share = 1;
  signals_.now.kv_blocks = wanted->form.kv.blocks;
  signals_.demand_grows = true;
  signals_.now.oldest_wait_ns = 400 * kNsPerMs;
  EXPECT_FALSE(faster.decide(signals_, wanted->form));
  signals_.now.oldest_wait_ns = 500 * kNsPerMs;
  const auto further = faster.decide(signals_, wanted->form);
  ASSERT_TRUE(further);
  EXPECT_GE(layers_at(further->form, Precision::kW4), 7);
  signals_.demand_grows = false;
  EXPECT_FALSE(faster.decide(signals_, wanted->form)) << "a queue that is worked off";
  signals_.now.oldest_wait_ns = kNsPerS;
  EXPECT_TRUE(faster.decide(signals_, wanted->form)) << "but not in time";
  Monitor monitor(options_where(MorphMode::kBalanced, FewerBits::kFaster));
  for (TimeNs at_ns = 0; at_ns < 3 * kNsPerS; at_ns += 50 * kNsPerMs) {
    monitor.sample({.at_ns = at_ns, .waiting = 3, .oldest_wait_ns = at_ns, .kv_blocks = 100});
  }
  EXPECT_EQ(monitor.signals(3 * kNsPerS).queued_share, 1);
}

TEST_F(Decide, BlocksThatAreWantedOrSoonWillBeAreNotIdle) {
  only_queue_presses();
  const MorphPolicy policy(options_where(MorphMode::kBalanced, FewerBits::kFasterToEight), bounds_);
  const std::int64_t all = full_.kv.blocks;
  signals_.now.blocks_wanted = all / 2;
  EXPECT_EQ(policy.decide(signals_, full_)->aim.idle_blocks, all - all / 2 - 1 - 8);
  signals_.demand_foreseen = static_cast<double>(all - 10);
  EXPECT_EQ(policy.decide(signals_, full_)->aim.idle_blocks, 10 - 8);
  signals_.now.blocks_wanted = 2 * all;
  EXPECT_EQ(policy.decide(signals_, full_)->aim.idle_blocks, 0);
}

TEST_F(Decide, LayersThatBeganLowerDoNotEndTheFirstRung) {
  only_queue_presses();
  FormBounds bounds = bounds_;
  bounds.full.layer_precision.front() = {Precision::kW4, Precision::kW4};
  const MorphPolicy faster(options_where(MorphMode::kBalanced, FewerBits::kFaster), bounds);
  EXPECT_EQ(precision_label(faster.decide(signals_, bounds.full).value().form), "w8:15+w4:1");
}

// From when newcomers would wait so long until layers are to be lowered; 0: they are not, within 3
// s of which this lasts `for_ns`.
TimeNs seen_after(const FormBounds& bounds, TimeNs expected_wait_ns, TimeNs for_ns,
                  int waiting = 3) {
  const PolicyOptions options = options_where(MorphMode::kBalanced, FewerBits::kFasterToEight);
  const MorphPolicy policy(options, bounds);
  const Form& full = policy.path().front();
  Monitor monitor(options);
  constexpr TimeNs kBeginNs = 2 * kNsPerS;
  for (TimeNs at_ns = 0; at_ns < kBeginNs + 3 * kNsPerS; at_ns += 20 * kNsPerMs) {
    const bool burst = at_ns >= kBeginNs && at_ns < kBeginNs + for_ns;
    monitor.sample({.at_ns = at_ns,
                    .running = 1,
                    .waiting = burst ? waiting : 0,
                    .expected_wait_ns = burst ? expected_wait_ns : 100 * kNsPerMs,
                    .kv_blocks = full.kv.blocks});
    if (policy.decide(monitor.signals(at_ns), full)) {
      return at_ns - kBeginNs;
    }
  }
  return 0;
}

TEST_F(Decide, AQueueIsSeenTheSoonerTheLongerNewcomersWouldWait) {
  const TimeNs long_ns = seen_after(bounds_, 3 * kNsPerS, 3 * kNsPerS);
  const TimeNs short_ns = seen_after(bounds_, 600 * kNsPerMs, 3 * kNsPerS);
  EXPECT_GT(long_ns, 0) << "a moment alone may be chance";
  EXPECT_LE(long_ns, 250 * kNsPerMs);
  EXPECT_GE(short_ns, 700 * kNsPerMs);
  EXPECT_LE(short_ns, kNsPerS);
  EXPECT_EQ(seen_after(bounds_, 600 * kNsPerMs, 500 * kNsPerMs), 0) << "it is over";
  EXPECT_EQ(seen_after(bounds_, 400 * kNsPerMs, 3 * kNsPerS), 0) << "nobody would be late";
  EXPECT_EQ(seen_after(bounds_, 3 * kNsPerS, 3 * kNsPerS, 0), 0) << "a long prompt alone";
}

TEST_F(Decide, WhereFourBitsAreNoFasterThanEightOnlyShortBlocksAreAReasonForThem) {
  only_queue_presses();
  const MorphPolicy policy(options_where(MorphMode::kBalanced, FewerBits::kFasterToEight), bounds_);
  const auto wanted = policy.decide(signals_, full_);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(layers_at(wanted->form, Precision::kW8), 16);
  signals_.long_wait_share = 1;
  signals_.now.kv_blocks = wanted->form.kv.blocks;
  signals_.now.oldest_wait_ns = 100 * kNsPerS;
  EXPECT_FALSE(policy.decide(signals_, wanted->form));
  signals_.pressed_share = 1;
  signals_.pressed_samples = 10;
  signals_.now.kv_blocks_used = signals_.now.kv_blocks;
  signals_.now.blocks_wanted = 1;
  signals_.demand_grows = true;
  signals_.now.oldest_wait_ns = 400 * kNsPerMs;
  EXPECT_FALSE(policy.decide(signals_, wanted->form)) << "for so short a wait";
  signals_.now.oldest_wait_ns = 500 * kNsPerMs;
  const auto further = policy.decide(signals_, wanted->form);
  ASSERT_TRUE(further);
  EXPECT_GT(layers_at(further->form, Precision::kW4), 0);
  signals_.full_step_share = 0.9;
  EXPECT_FALSE(policy.decide(signals_, wanted->form)) << "more blocks would not make steps larger";
  const auto first = policy.decide(signals_, full_);
  ASSERT_TRUE(first);
  EXPECT_EQ(layers_at(first->form, Precision::kW8), 16);
  const MorphPolicy faster(options_where(MorphMode::kBalanced, FewerBits::kFaster), bounds_);
  EXPECT_TRUE(faster.decide(signals_, wanted->form)) << "where four bits make them faster";
}

TEST_F(Decide, DoesNotAskAgainForWhatIsOnItsWay) {
  const auto wanted = policy_.decide(signals_, full_);
  ASSERT_TRUE(wanted);
  EXPECT_FALSE(policy_.decide(signals_, wanted->form)) << "the KV cache has not grown yet";
}

TEST_F(Decide, RaisesInPartWhenThatIsWhatFits) {
  const Form low = policy_.path().back();
  quiet_at(low, 0.5);
  const auto full = policy_.decide(signals_, low);
  ASSERT_TRUE(full);
  EXPECT_EQ(place(full->form), 0U);
  quiet_at(low, 0.9);
  const auto part = policy_.decide(signals_, low);
  ASSERT_TRUE(part);
  EXPECT_GT(place(part->form), 0U);
  EXPECT_LT(place(part->form), policy_.path().size() - 1);
}

TEST_F(Decide, StaysLowUntilItIsQuietAndTheLoadFell) {
  const Form low = policy_.path().back();
  for (const auto& disturb :
       std::vector<void (*)(Signals&)>{[](Signals& signals) { signals.long_wait_share = 0.1; },
                                       [](Signals& signals) { signals.waiting_mean = 1; },
                                       [](Signals& signals) { signals.preemptions = 1; },
                                       [](Signals& signals) {
                                         signals.load_fell = false;
                                         signals.busy_share = 1;
                                       },
                                       [](Signals& signals) { signals.demand_max = 1e6; }}) {
    quiet_at(low, 0.3);
    disturb(signals_);
    EXPECT_FALSE(policy_.decide(signals_, low));
  }
}

TEST_F(Decide, RisesThoughTheLoadDidNotFallWhereMostOfTheTimeNothingRan) {
  const Form low = policy_.path().back();
  quiet_at(low, 0.3);
  signals_.load_fell = false;
  signals_.busy_share = 0.9;
  EXPECT_FALSE(policy_.decide(signals_, low));
  signals_.busy_share = 0.3;
  EXPECT_TRUE(policy_.decide(signals_, low));
}

TEST_F(Decide, RisesThoughTheLoadDidNotFallWhereTheFirstFormWouldCarryIt) {
  const MorphPolicy faster(options_where(MorphMode::kBalanced, FewerBits::kFasterToEight), bounds_);
  const Form low = faster.path().back();
  const auto busy_at = [&](double full_work_share, double demand_lately) {
    quiet_at(low, 0.3);
    signals_.load_fell = false;
    signals_.busy_share = 1;
    signals_.full_work_share = full_work_share;
    signals_.demand_lately = demand_lately * static_cast<double>(full_.kv.blocks);
  };
  busy_at(0.5, 0.3);
  EXPECT_TRUE(faster.decide(signals_, low));
  EXPECT_FALSE(policy_.decide(signals_, low)) << "where blocks are what is short";
  busy_at(0.7, 0.3);
  EXPECT_FALSE(faster.decide(signals_, low));
  busy_at(0, 0.3);
  EXPECT_FALSE(faster.decide(signals_, low)) << "nobody knows";
  busy_at(0.5, 0.5);
  const auto part = faster.decide(signals_, low);
  ASSERT_TRUE(part);
  EXPECT_NE(part->form, full_) << "sequences will keep their blocks for longer";
}

// As it is left where a way up was called off: the embeddings are raised first.
TEST_F(Decide, FromBesideThePathItGoesOnToTheNextFormThere) {
  const auto end = std::find_if(policy_.path().begin(), policy_.path().end(),
                                [](const Form& form) { return form.embeddings == Precision::kW8; });
  ASSERT_NE(end, policy_.path().end());
  Form beside = *end;
  beside.embeddings = Precision::kBf16;
  beside.kv.blocks = full_.kv.blocks;
  const auto lower = policy_.decide(signals_, beside);
  ASSERT_TRUE(lower);
  EXPECT_GE(place(lower->form), static_cast<std::size_t>(end - policy_.path().begin()));
  PolicyOptions gentle = options_for(MorphMode::kAccuracy);
  gentle.entry_window_ns = options_for(MorphMode::kBalanced).entry_window_ns;
  const MorphPolicy one_rung(gentle, bounds_);
  const auto last = one_rung.decide(signals_, beside);
  ASSERT_TRUE(last) << "that is not yet the end";
  EXPECT_EQ(last->form, one_rung.path().back());
}

TEST_F(Decide, AFormBesideThePathIsTakenForTheNextSmallerOne) {
  Form wished = full_;
  wished.layer_precision[9] = {Precision::kW4, Precision::kW8};
  const auto lower = policy_.decide(signals_, wished);
  ASSERT_TRUE(lower);
  EXPECT_GT(place(lower->form), 0U);
  quiet_at(wished, 0.1);
  const auto raised = policy_.decide(signals_, wished);
  ASSERT_TRUE(raised);
  EXPECT_EQ(place(raised->form), 0U);
}

}  // namespace
}  // namespace protean
