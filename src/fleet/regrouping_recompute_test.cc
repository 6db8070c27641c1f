// Tests groups whose KV moves over slow links: some of it is computed again instead.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <vector>

#include "base/repetitions_for_test.h"
#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

constexpr double kSlow = 1e5;  // bytes a second: a token takes 8 ms, and 0.02 ms to compute
constexpr double kMiddle = 2e7;
constexpr double kFast = 1e9;

GroupScene::Options over_link(double bytes_per_s) {
  StepCost cost{.fixed_us = 100};
  cost.of(Precision::kF32) = {.step_us = 1000, .token_us = 20, .more_token_us = 20};
  return {.blocks = 44, .step_cost = cost, .kv_bytes_per_s = bytes_per_s};
}

// Lets each replica decode three requests.
void begin_answers(GroupScene& scene, int output) {
  const auto begun = [&] {
    return std::ranges::count_if(scene.sink.seen,
                                 [](const auto& seen) { return !seen.second.tokens.empty(); });
  };
  const auto all = begun() + 6;
  for (int topic = 0; topic < 6; ++topic) {
    scene.arrive(topic, 24, output);
  }
  for (int i = 0; i < 40 && begun() < all; ++i) {
    scene.work(i % 2);
  }
  ASSERT_EQ(begun(), all);
}

// Lets a group have requests that all together wait longer for their KV than for attention weights.
void begin_answers_of_group(GroupScene& scene) {
  for (int topic = 0; topic < 14; ++topic) {
    scene.arrive(topic, 60, 20);
  }
  for (int i = 0; i < 8; ++i) {
    scene.work(0);
  }
}

const RegroupRecord& last_change(const GroupScene& scene) {
  return scene.sink.groups->history.back();
}

TEST(Recomputing, RequestsAreComputedAgainOverASlowLinkAndMoveOverAFastOne) {
  for (const GroupBy by : {GroupBy::kLayers, GroupBy::kShards}) {
    for (const bool slow : {true, false}) {
      GroupScene scene(over_link(slow ? kSlow : kFast));
      begin_answers(scene, 12);
      ASSERT_TRUE(scene.want({{0, 1}}, by).ok());
      scene.settle();
      ASSERT_EQ(scene.groups(), "01");
      EXPECT_EQ(last_change(scene).failure, "");
      EXPECT_EQ(last_change(scene).recomputed, slow ? 6 : 0);
      EXPECT_EQ(last_change(scene).kv_bytes == 0, slow);
      scene.expect_all_answered();
    }
  }
}

TEST(Recomputing, RequestsOfAGroupThatPartsAreComputedAgainToo) {
  for (const bool slow : {true, false}) {
    GroupScene scene(over_link(slow ? kSlow : kFast));
    ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
    scene.settle();
    begin_answers_of_group(scene);
    ASSERT_TRUE(scene.want({{0}, {1}}).ok());
    scene.settle();
    ASSERT_EQ(scene.groups(), "0 1");
    EXPECT_EQ(last_change(scene).failure, "");
    EXPECT_EQ(last_change(scene).recomputed > 0, slow);
    EXPECT_EQ(last_change(scene).kv_bytes == 0, slow);
    scene.expect_all_answered();
  }
}

// A group that parts has the KV of all its layers in place before it fetches MLPs.
TEST(Recomputing, RequestsGoOnWhenNoKvIsLeftToMove) {
  GroupScene scene(over_link(kSlow));
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  scene.settle();
  begin_answers_of_group(scene);
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  const auto work = [&] {
    for (int round = 0; round < 200; ++round) {
      scene.work(0);
      scene.work(1);
    }
  };
  for (int round = 0; round < 100 && scene.stage() != "joint steps"; ++round) {
    if (!scene.ready()) {  // the group's KV shrinks first
      scene.tick();
    }
    scene.work(0);
    scene.work(1);
  }
  work();
  ASSERT_EQ(scene.stage(), "joint steps");
  EXPECT_FALSE(scene.fleet->idle()) << "all wait";
  int fetched = 0;
  while (!scene.fleet->idle() && scene.ready()) {
    ++fetched;
    work();
  }
  EXPECT_TRUE(scene.changing()) << "MLPs and embeddings are not there";
  EXPECT_LE(fetched, kGroupLayers);
  scene.expect_all_answered();
  scene.settle();
  EXPECT_GT(last_change(scene).recomputed, 0);
}

// The request would wait until the attention weights have come.
TEST(Recomputing, AShortRequestDoesNotWaitForWeights) {
  GroupScene scene(over_link(kSlow));
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  scene.settle();
  scene.arrive(1, 4, 20);
  for (int i = 0; i < 4; ++i) {
    scene.work(0);
  }
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.settle();
  EXPECT_EQ(last_change(scene).recomputed, 0);
  scene.expect_all_answered();
}

// A link takes the time of what its devices receive: by layers one of them does, by shards both.
TEST(Recomputing, ALinkThatDevicesShareIsAsFastAsTheyUseIt) {
  const auto recomputed = [](GroupBy by, int devices_on_link, double bytes_per_s) {
    GroupScene::Options options = over_link(bytes_per_s);
    options.steps_at_once = kAllAtOnce;
    options.devices_on_link = devices_on_link;
    GroupScene scene(options);
    begin_answers(scene, 12);
    EXPECT_TRUE(scene.want({{0, 1}}, by).ok());
    scene.settle();
    scene.expect_all_answered();
    return last_change(scene).recomputed;
  };
  int least = 6;
  int most = 0;
  for (const double rate : {5e6, 1e7, 1.5e7, 2e7, 3e7, 4.5e7, 1e8}) {
    const int by_shards = recomputed(GroupBy::kShards, 0, rate);
    EXPECT_EQ(recomputed(GroupBy::kShards, 2, 2 * rate), by_shards) << rate;
    EXPECT_EQ(recomputed(GroupBy::kLayers, 8, rate), recomputed(GroupBy::kLayers, 0, rate)) << rate;
    least = std::min(least, by_shards);
    most = std::max(most, by_shards);
  }
  EXPECT_EQ(least, 0);
  EXPECT_EQ(most, 6);
}

// All requests wait, and those that come wait too.
TEST(Recomputing, RequestsThatGaveUpTheirKvWaitForTheEndOfTheChange) {
  GroupScene scene(over_link(kSlow));
  begin_answers(scene, 12);
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  for (int round = 0; round < 100 && scene.stage() != "joint steps"; ++round) {
    scene.work(0);
    scene.work(1);
  }
  ASSERT_EQ(scene.stage(), "joint steps");
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).kv_blocks_used, 0);
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).waiting, 3);
  EXPECT_EQ(scene.fleet->observe(ReplicaId{1}).waiting, 3);
  const auto drawn = [&](std::uint64_t id) { return scene.sink.seen.at(RequestId{id}).tokens; };
  const auto before = drawn(1);
  scene.arrive(20, 8, 2);
  scene.send(Cancel{RequestId{2}});
  for (int round = 0; round < 10; ++round) {
    scene.work(0);
    scene.work(1);
  }
  EXPECT_EQ(scene.stage(), "joint steps") << "nothing is prepared";
  EXPECT_EQ(drawn(1), before);
  EXPECT_TRUE(drawn(7).empty()) << "its KV would move";
  EXPECT_EQ(scene.sink.seen.at(RequestId{2}).finished->reason, FinishReason::kCancelled);
  scene.settle();
  EXPECT_EQ(scene.groups(), "01");
  scene.expect_all_answered();
}

// A step fails and leads back, and another one fails on the way back, which is tried again later.
TEST(Recomputing, RequestsGoOnIfTheChangeFails) {
  GroupScene scene(over_link(kSlow));
  begin_answers(scene, 12);
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  const auto work_until_prepared = [&] {
    for (int round = 0; round < 100 && scene.devices.preparing.empty(); ++round) {
      scene.work(0);
      scene.work(1);
    }
  };
  work_until_prepared();
  while (scene.ready()) {  // copies of MLPs are dropped
  }
  for (int failures = 0; failures < 2; ++failures) {
    work_until_prepared();
    ASSERT_TRUE(scene.ready(0, Error{ErrorCode::kExhausted, "no page"}));
  }
  for (int round = 0; round < 100 && !scene.fleet->idle(); ++round) {
    scene.work(0);
    scene.work(1);
  }
  EXPECT_TRUE(scene.changing()) << "the requests did not wait for its end";
  scene.expect_all_answered();
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  EXPECT_EQ(last_change(scene).recomputed, 6);
}

// A cached prefix would move too.
TEST(Recomputing, CachedKvIsForgottenOverASlowLink) {
  for (const bool slow : {true, false}) {
    GroupScene scene(over_link(slow ? kSlow : kFast));
    scene.arrive(20, 40, 2);
    scene.settle();
    begin_answers(scene, 8);
    ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
    scene.settle();
    EXPECT_EQ(last_change(scene).kv_bytes == 0, slow);
    scene.arrive(20, 40, 2);
    scene.settle();
    const int cached = scene.sink.seen.at(RequestId{8}).finished->usage.cached_tokens;
    EXPECT_EQ(cached > 0, !slow);
    scene.expect_all_answered();
  }
}

// Requests of all lengths, cancels, failures and changes of groups in random order, over links that
// are slow, fast, or slow for some requests: no token is lost, repeated or different.
TEST(Recomputing, ChangesAtRandomMomentsChangeNoToken) {
  int recomputed = 0;
  int mixed = 0;  // changes that moved some KV and gave up other
  for (int seed = 0; seed < repetitions(30); ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    GroupScene scene(
        over_link(std::array{kSlow, kMiddle, kFast}[static_cast<std::size_t>(seed) % 3]));
    const std::vector<std::vector<int>> together = {{0, 1}};
    const std::vector<std::vector<int>> alone = {{0}, {1}};
    for (int event = 0; event < 3'000; ++event) {
      const int dice = below(400);
      if (dice < 16) {
        scene.arrive(below(8), 1 + below(60), 1 + below(30));
      } else if (dice < 18 && !scene.asked.empty()) {
        scene.send(Cancel{RequestId{
            1 + static_cast<std::uint64_t>(below(static_cast<int>(scene.asked.size())))}});
      } else if (dice < 26) {
        (void)scene.want(below(2) == 0 ? together : alone,
                         below(2) == 0 ? GroupBy::kLayers : GroupBy::kShards);
      } else if (dice < 100) {
        const bool fails = below(60) == 0;
        scene.ready(0,
                    fails ? std::optional(Error{ErrorCode::kExhausted, "no page"}) : std::nullopt);
      } else if (dice < 110) {
        scene.tick();
      } else {
        scene.work(below(2));
      }
    }
    (void)scene.want(alone);
    scene.settle();
    scene.expect_all_answered();
    EXPECT_EQ(scene.groups(), "0 1");
    for (const RegroupRecord& record : scene.sink.groups->history) {
      recomputed += record.recomputed;
      mixed += record.recomputed > 0 && record.kv_bytes > 0 ? 1 : 0;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(recomputed, repetitions(20));
  EXPECT_GT(mixed, repetitions(2));
}

}  // namespace
}  // namespace protean
