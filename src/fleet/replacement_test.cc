// Tests requests that wait for other devices because those of the only replica have failed.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "fleet/succession_scene_for_test.h"

namespace protean {
namespace {

// Serves five requests, of which two wait, for so many steps. Then the devices fail.
void serve_and_fail(SuccessionScene& scene, int steps) {
  scene.fleet->await_successor(true);
  for (int topic = 1; topic <= 5; ++topic) {
    scene.arrive(topic, 40, 30);
  }
  scene.serve(steps);
  scene.send(DevicesFailed{"has lost memory"}, ReplicaId{0});
}

void expect_not_ended(SuccessionScene& scene, std::uint64_t requests) {
  for (std::uint64_t id = 1; id <= requests; ++id) {
    EXPECT_TRUE(scene.seen(id).accepted);
    EXPECT_FALSE(scene.seen(id).finished.has_value()) << scene.seen(id).finished->failure;
  }
}

TEST(Replacement, RequestsOfTheOnlyReplicaGoOnInTheExecutorThatSucceedsIt) {
  for (int steps = 0; steps < 30; steps += 3) {
    SuccessionScene scene({.sequences = 3});
    serve_and_fail(scene, steps);
    EXPECT_TRUE(scene.now().given_up);
    ASSERT_NE(scene.sink.groups, nullptr);
    EXPECT_EQ(scene.sink.groups->failed.size(), 1U);
    scene.arrive(6, 20, 5);
    scene.settle();
    expect_not_ended(scene, 6);
    scene.send(Cancel{RequestId{4}});
    EXPECT_TRUE(scene.seen(4).finished.has_value()) << "its client has left";
    ASSERT_TRUE(scene.succeed({.blocks = 150, .sequences = 4}).ok());
    ASSERT_TRUE(scene.ended && scene.ended->ok());
    EXPECT_TRUE(scene.sink.groups->failed.empty()) << "it is in service again";
    const auto failure = scene.fleet->take_failed();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->devices, std::vector{0});
    scene.arrive(7, 20, 5);
    scene.settle();
    scene.expect_all_answered();
    EXPECT_EQ(scene.copies, 0) << "nothing is read from devices that have failed";
    EXPECT_EQ(scene.seen(1).finished->usage.output_tokens, 30);
    EXPECT_EQ(scene.seen(1).finished->usage.prompt_tokens, 40);
  }
}

TEST(Replacement, AnotherFleetGoesOnWithThem) {
  for (int steps = 0; steps < 30; steps += 3) {
    SuccessionScene scene({.sequences = 3});
    serve_and_fail(scene, steps);
    std::vector<HeldRequest> held = scene.fleet->take_held();
    EXPECT_EQ(held.size(), 5U);
    EXPECT_TRUE(scene.fleet->idle());
    expect_not_ended(scene, 5);
    SuccessionScene next({.blocks = 100});
    next.asked = scene.asked;
    next.sink.seen = scene.sink.seen;
    next.fleet->hold(std::move(held), ++next.now_ns);
    next.arrive(6, 20, 5);
    next.settle();
    next.expect_all_answered();
    EXPECT_EQ(next.seen(1).finished->usage.output_tokens, 30) << "tokens of both count";
  }
}

TEST(Replacement, ThoseThatHaveTokensEndIfTheWeightsAreOthersAndTheRestGoOn) {
  SuccessionScene scene({.sequences = 3});
  serve_and_fail(scene, 5);
  std::vector<HeldRequest> held = scene.fleet->take_held();
  for (HeldRequest& one : held) {
    one.weights_replaced();
  }
  SuccessionScene next({.blocks = 100});
  next.asked = scene.asked;
  next.sink.seen = scene.sink.seen;
  next.fleet->hold(std::move(held), ++next.now_ns);
  next.settle();
  int failed = 0;
  for (std::uint64_t id = 1; id <= 5; ++id) {
    const bool begun = !scene.seen(id).tokens.empty();
    failed += begun ? 1 : 0;
    ASSERT_TRUE(next.seen(id).finished.has_value());
    EXPECT_EQ(next.seen(id).finished->reason,
              begun ? FinishReason::kFailed : FinishReason::kLength);
    EXPECT_EQ(next.seen(id).finished->failure.find("weights were replaced") != std::string::npos,
              begun)
        << next.seen(id).finished->failure;
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 5);
}

TEST(Replacement, TheyEndOnceNoOtherDevicesAreToCome) {
  SuccessionScene scene({});
  serve_and_fail(scene, 5);
  scene.arrive(6, 20, 5);
  expect_not_ended(scene, 6);
  scene.fleet->await_successor(false);
  scene.send(Tick{});
  for (std::uint64_t id = 1; id <= 6; ++id) {
    ASSERT_TRUE(scene.seen(id).finished.has_value());
    EXPECT_EQ(scene.seen(id).finished->reason, FinishReason::kFailed);
  }
  EXPECT_GT(scene.seen(1).finished->usage.output_tokens, 0);
  scene.arrive(7, 20, 5);
  EXPECT_TRUE(scene.seen(7).refused.has_value());
  EXPECT_TRUE(scene.fleet->idle());
}

TEST(Replacement, ARequestThatFindsNoRoomThereEndsWithTheReason) {
  SuccessionScene scene({});
  scene.fleet->await_successor(true);
  scene.arrive(1, 90, 60);
  scene.arrive(2, 40, 20);
  scene.serve(6);
  scene.send(DevicesFailed{"has lost memory"}, ReplicaId{0});
  scene.arrive(3, 90, 60);
  ASSERT_TRUE(scene.succeed({.longest = 100}).ok());
  ASSERT_TRUE(scene.seen(1).finished.has_value());
  EXPECT_EQ(scene.seen(1).finished->reason, FinishReason::kFailed);
  EXPECT_NE(scene.seen(1).finished->failure.find("no other can go on with it"), std::string::npos);
  ASSERT_TRUE(scene.seen(3).finished.has_value());
  EXPECT_NE(scene.seen(3).finished->failure.find("cannot hold the request"), std::string::npos)
      << scene.seen(3).finished->failure;
  scene.settle();
  EXPECT_EQ(scene.seen(2).finished->reason, FinishReason::kLength);
  EXPECT_EQ(scene.seen(2).tokens.size(), 20U);
}

TEST(Replacement, ATimeLimitHoldsWhileTheyWait) {
  constexpr TimeNs kLimitNs = 1'000;
  SuccessionScene scene({});
  scene.fleet->await_successor(true);
  Request limited;
  limited.id = RequestId{1};
  limited.prompt = {1, 2, 3};
  limited.max_tokens = 30;
  limited.deadlines.finish_ns = kLimitNs;
  scene.send(Arrival{limited});
  scene.serve(5);
  scene.send(DevicesFailed{"has lost memory"}, ReplicaId{0});
  expect_not_ended(scene, 1);
  EXPECT_EQ(scene.fleet->next_deadline_ns(), kLimitNs);
  scene.now_ns = kLimitNs;
  scene.send(Tick{});
  ASSERT_TRUE(scene.seen(1).finished.has_value());
  EXPECT_EQ(scene.seen(1).finished->reason, FinishReason::kTimeout);
  EXPECT_TRUE(scene.fleet->idle());
}

}  // namespace
}  // namespace protean
