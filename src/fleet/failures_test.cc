// Tests replicas and members of groups whose devices fail (KunServe section 4.4).

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

constexpr TimeNs kTimeout = 10 * kNsPerS;

GroupScene::Options options_of(int replicas) {
  return {.replicas = replicas, .device_timeout_ns = kTimeout};
}

// Lets the devices work and time pass until all requests have ended and no group changes.
void settle_with_time(GroupScene& scene) {
  for (int round = 0; round < 20'000; ++round) {
    bool more = scene.ready();
    for (int replica = 0; replica < static_cast<int>(scene.fleet->size()); ++replica) {
      more = scene.work(replica) || more;
    }
    const bool waits = scene.changing() || !scene.fleet->idle();
    if (!more && !(waits && scene.tick())) {
      return;
    }
  }
  FAIL() << "there is no end";
}

std::string failed_of(const GroupScene& scene) {
  std::string text;
  if (scene.sink.groups) {
    for (const ReplicaFailure& failure : scene.sink.groups->failed) {
      text += fmt::format("{} {}; ", failure.replica.value, failure.why);
    }
  }
  return text;
}

TEST(Failures, RequestsOfAReplicaThatHangsGoOnInOthers) {
  GroupScene scene(options_of(3));
  for (int topic = 0; topic < 9; ++topic) {
    scene.arrive(topic, 20, 30);
  }
  for (int i = 0; i < 15; ++i) {
    scene.work(i % 3);
  }
  ASSERT_FALSE(scene.sink.seen.at(RequestId{2}).tokens.empty());
  scene.devices.hang(ReplicaId{1});
  settle_with_time(scene);
  scene.expect_all_answered();
  EXPECT_EQ(failed_of(scene), "1 has not answered for 10 s; ");
  scene.arrive(1, 20, 5);
  settle_with_time(scene);
  scene.expect_all_answered();
  EXPECT_EQ(scene.sink.observed.at(ReplicaId{1}).running, 0);
}

TEST(Failures, AStoppedProcessBlamesNoDevice) {
  GroupScene scene(options_of(2));
  scene.arrive(1, 20, 30);
  scene.now_ns += 20 * kTimeout;
  scene.send(Tick{});
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(failed_of(scene), "");
}

TEST(Failures, ADeviceThatWaitsForItsTurnIsNotLate) {
  GroupScene scene(options_of(1));
  scene.arrive(1, 20, 30);
  scene.devices.hang(ReplicaId{0});
  scene.devices.awaiting_turn = {ReplicaId{0}};
  while (scene.now_ns < 3 * kTimeout) {
    ASSERT_TRUE(scene.tick());
  }
  EXPECT_FALSE(scene.sink.seen.at(RequestId{1}).finished.has_value());
  scene.devices.awaiting_turn.clear();
  settle_with_time(scene);
  EXPECT_TRUE(scene.sink.seen.at(RequestId{1}).finished.has_value());
}

// A migration waits for a step of the one that hangs, and then the whole process stands still.
TEST(Failures, AReplicaThatIsToTakeARequestOfOneThatHangsIsNotBlamed) {
  GroupScene scene(options_of(2));
  scene.arrive(1, 8, 1);
  scene.arrive(2, 20, 40);
  for (int i = 0; i < 8; ++i) {
    scene.work(i % 2);
  }
  scene.devices.hang(ReplicaId{1});
  ASSERT_EQ(scene.fleet->migrate(ReplicaId{1}, ReplicaId{0}, 1, scene.now_ns).value(), 1);
  scene.now_ns += kTimeout * 2 / 3;
  scene.send(Tick{});
  settle_with_time(scene);
  EXPECT_EQ(failed_of(scene), "1 has not answered for 10 s; ");
  scene.expect_answer(RequestId{2});
}

bool copies_to(GroupScene& scene, ReplicaId replica) {
  const auto& queue = scene.devices.queue(replica);
  return std::any_of(queue.begin(), queue.end(), [](const GroupedDevices::Work& work) {
    return std::holds_alternative<GroupedDevices::CopyIn>(work);
  });
}

// A device of the group that gives a request, or takes it, fails while its KV is copied.
TEST(Failures, ARequestOnItsWayBetweenGroupsGoesOnWhenOneOfThemFails) {
  for (const int victim : {0, 1, 2, 3}) {
    GroupScene scene(options_of(4));
    ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
    ASSERT_TRUE(scene.want({{2, 3}}).ok());
    scene.settle();
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 40);
    }
    for (int i = 0; i < 6; ++i) {
      scene.work(i % 2 * 2);
    }
    ASSERT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{2}, 1, scene.now_ns).value(), 1);
    scene.work(0);  // the request pauses, and its last blocks are copied
    ASSERT_TRUE(copies_to(scene, ReplicaId{2}));
    scene.devices.hang(ReplicaId{victim});
    scene.send(DevicesFailed{"has lost memory"}, ReplicaId{victim});
    EXPECT_FALSE(copies_to(scene, ReplicaId{2}));
    settle_with_time(scene);
    EXPECT_EQ(failed_of(scene), fmt::format("{} has lost memory; ", victim));
    EXPECT_EQ(scene.groups(), victim < 2 ? "0 1 23" : "01 2 3");
    scene.expect_all_answered();
  }
}

TEST(Failures, WithoutAReplicaLeftRequestsAreToldSo) {
  GroupScene scene(options_of(1));
  scene.arrive(1, 20, 30);
  scene.work(0);
  scene.work(0);
  scene.devices.hang(ReplicaId{0});
  settle_with_time(scene);
  const auto& finished = scene.sink.seen.at(RequestId{1}).finished;
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->failure,
            "the request's replica has failed, and no other can go on with it: send it again "
            "later");
  EXPECT_GT(finished->usage.output_tokens, 0);
  scene.arrive(1, 20, 30);
  EXPECT_EQ(scene.sink.seen.at(RequestId{2}).refused->code, ErrorCode::kUnavailable);
}

TEST(Failures, AGroupGoesOnWithoutAMember) {
  for (const GroupBy by : {GroupBy::kShards, GroupBy::kLayers}) {
    GroupScene scene(options_of(2));
    ASSERT_TRUE(scene.want({{0, 1}}, by).ok());
    scene.settle();
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 30);
    }
    for (int i = 0; i < 5; ++i) {
      scene.work(0);
    }
    scene.devices.hang(ReplicaId{0});  // the one under whose id the group serves
    settle_with_time(scene);
    scene.expect_all_answered();
    EXPECT_EQ(failed_of(scene), "0 has not answered for 10 s; ");
    EXPECT_EQ(scene.groups(), "0 1");
    EXPECT_EQ(scene.sink.groups->history.back().failure, "replica 0 has not answered for 10 s");
    const auto again = scene.want({{0, 1}});
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.error().message,
              "these groups cannot be had: replica 0 is out of service: it has not answered for "
              "10 s");
  }
}

// Until the group has parted, what arrives waits, unless no replica could ever hold it.
TEST(Failures, RequestsThatArriveWhileAGroupPartsWaitForTheOthers) {
  for (const GroupBy by : {GroupBy::kShards, GroupBy::kLayers}) {
    GroupScene scene(options_of(2));
    ASSERT_TRUE(scene.want({{0, 1}}, by).ok());
    scene.settle();
    scene.arrive(1, 20, 30);
    scene.work(0);
    scene.devices.hang(ReplicaId{0});
    scene.send(DevicesFailed{"has lost memory"}, ReplicaId{0});
    ASSERT_TRUE(scene.changing());
    scene.arrive(2, 20, 30);
    scene.arrive(3, 100, 30);
    scene.arrive(4, 20, 30, {.finish_ns = scene.now_ns + 2});
    scene.arrive(5, 20, 30);
    EXPECT_TRUE(scene.sink.seen.at(RequestId{2}).accepted);
    EXPECT_EQ(scene.sink.seen.at(RequestId{3}).refused->code, ErrorCode::kInvalidArgument);
    scene.send(Cancel{RequestId{5}});
    EXPECT_EQ(scene.sink.seen.at(RequestId{5}).finished->reason, FinishReason::kCancelled);
    settle_with_time(scene);
    scene.expect_answer(RequestId{1});
    scene.expect_answer(RequestId{2});
    EXPECT_EQ(scene.sink.seen.at(RequestId{4}).finished->reason, FinishReason::kTimeout);
    EXPECT_TRUE(scene.fleet->idle());
  }
}

TEST(Failures, RequestsThatWaitForSurvivorsEndWhenTheseFailToo) {
  GroupScene scene(options_of(2));
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  scene.settle();
  for (const int victim : {0, 1}) {
    scene.devices.hang(ReplicaId{victim});
    scene.send(DevicesFailed{"has lost memory"}, ReplicaId{victim});
    scene.arrive(1, 20, 30);
  }
  settle_with_time(scene);
  EXPECT_EQ(scene.sink.seen.at(RequestId{1}).finished->failure,
            "the replicas that were to serve the request have failed: send it again later");
  EXPECT_EQ(scene.sink.seen.at(RequestId{2}).refused->code, ErrorCode::kUnavailable);
  EXPECT_TRUE(scene.fleet->idle());
}

// A request is too long for the replica that was chosen for it, and waits for that one's group.
TEST(Failures, ARequestThatWaitsForTheGroupOfAFailedReplicaGoesToAnother) {
  for (int victim = 0; victim < 4; ++victim) {
    GroupScene::Options options = options_of(4);
    options.scale = ScalePolicy::kNeighbours;
    GroupScene scene(options);
    scene.arrive(0, 110, 10);
    scene.devices.hang(ReplicaId{victim});
    settle_with_time(scene);
    scene.expect_all_answered();
    scene.arrive(1, 110, 10);
    settle_with_time(scene);
    scene.expect_all_answered();
    EXPECT_EQ(scene.sink.seen.at(RequestId{1}).tokens.size(), 10U) << "replica " << victim;
    EXPECT_EQ(scene.sink.seen.at(RequestId{2}).tokens.size(), 10U) << "replica " << victim;
  }
}

TEST(Failures, ARequestThatNeedsTheGroupOfAFailedReplicaIsRefusedWithTheReason) {
  GroupScene::Options options = options_of(2);
  options.scale = ScalePolicy::kPaper;
  GroupScene scene(options);
  scene.arrive(1, 20, 30);
  scene.work(0);
  scene.devices.hang(ReplicaId{0});
  settle_with_time(scene);
  scene.arrive(2, 120, 10);
  const auto& refused = scene.sink.seen.at(RequestId{2}).refused;
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, ErrorCode::kUnavailable);
  EXPECT_EQ(refused->message,
            "the request needs a group of replicas, and replica 0 is out of service: it has not "
            "answered for 10 s. Start the server again");
  scene.arrive(3, 20, 5);
  settle_with_time(scene);
  EXPECT_EQ(scene.sink.seen.at(RequestId{3}).tokens.size(), 5U);
}

TEST(Failures, ASlowCopyBlamesNoDevice) {
  GroupScene scene(options_of(2));
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  for (int topic = 0; topic < 100; ++topic) {
    scene.arrive(topic % 6, 20, 30);
    for (int i = 0; i < 20; ++i) {
      scene.work(i % 2);
    }
    scene.now_ns += kTimeout / 3;  // no step of the change is ready for all this time
  }
  EXPECT_TRUE(scene.changing());
  settle_with_time(scene);
  scene.expect_all_answered();
  EXPECT_EQ(failed_of(scene), "");
  EXPECT_EQ(scene.groups(), "01");
}

// No step runs that could wait for it.
TEST(Failures, ADeviceThatHangsWhileItPreparesIsFound) {
  for (const bool parts : {false, true}) {
    for (const int victim : {0, 1}) {
      GroupScene scene(options_of(2));
      if (parts) {
        ASSERT_TRUE(scene.want({{0, 1}}).ok());
        scene.settle();
      }
      scene.devices.stall(ReplicaId{victim});
      ASSERT_TRUE((parts ? scene.want({{0}, {1}}) : scene.want({{0, 1}})).ok());
      settle_with_time(scene);
      EXPECT_EQ(failed_of(scene), fmt::format("{} has not answered for 10 s; ", victim));
      EXPECT_EQ(scene.groups(), "0 1");
      scene.arrive(1, 20, 5);
      settle_with_time(scene);
      scene.expect_all_answered();
      EXPECT_EQ(scene.sink.seen.at(RequestId{1}).tokens.size(), 5U);
    }
  }
}

// Asks for a form of lower precisions of a group that serves, if there is one.
void lower_a_group(GroupScene& scene, int layer) {
  FormWish wish{.layers = scene.form.layer_precision};
  wish.layers[static_cast<std::size_t>(layer)].mlp = Precision::kBf16;
  for (const GroupStatus& group :
       scene.sink.groups ? scene.sink.groups->groups : std::vector<GroupStatus>()) {
    if (group.replicas.size() > 1) {
      scene.send(WantForm{1, wish}, group.replicas.front());
      return;
    }
  }
}

// The second member fails while the group parts without the first one.
TEST(Failures, AGroupWhoseMembersAllFailParts) {
  for (int moment = 0; moment < 24; ++moment) {
    GroupScene scene(options_of(2));
    const GroupBy by = moment % 2 == 0 ? GroupBy::kShards : GroupBy::kLayers;
    ASSERT_TRUE(scene.want({{0, 1}}, by).ok());
    scene.settle();
    lower_a_group(scene, moment % kGroupLayers);
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 30);
    }
    for (const int victim : {moment / 2 % 2, 1 - moment / 2 % 2}) {
      for (int i = 0; i < moment; ++i) {
        scene.work(0);
        if (i % 3 == 0) {
          scene.ready();
        }
      }
      scene.devices.hang(ReplicaId{victim});
      scene.send(DevicesFailed{"has lost memory"}, ReplicaId{victim});
    }
    settle_with_time(scene);
    EXPECT_FALSE(scene.changing());
    EXPECT_EQ(scene.groups(), "0 1");
    EXPECT_TRUE(scene.fleet->idle());
    for (const auto& [id, request] : scene.asked) {
      EXPECT_TRUE(scene.sink.seen.at(id).finished.has_value()) << id.value;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "moment " << moment;
  }
}

// The longest time without a token, and the most steps that ended in such a time.
struct Pause {
  TimeNs longest_ns = 0;
  std::int64_t most_steps = 0;
};

// Lets the devices work until all requests have ended.
Pause pause_until_the_end(GroupScene& scene) {
  const auto sum = [&](std::int64_t Observation::*field) {
    std::int64_t all = 0;
    for (const auto& [replica, seen] : scene.sink.observed) {
      all += seen.*field;
    }
    return all;
  };
  Pause pause;
  TimeNs token_ns = scene.now_ns;
  std::int64_t steps = sum(&Observation::steps_total);
  std::int64_t tokens = sum(&Observation::output_tokens_total);
  for (int round = 0; round < 20'000 && !scene.fleet->idle(); ++round) {
    bool more = scene.ready();
    for (int replica = 0; replica < static_cast<int>(scene.fleet->size()); ++replica) {
      more = scene.work(replica) || more;
      if (sum(&Observation::output_tokens_total) > tokens) {
        pause.longest_ns = std::max(pause.longest_ns, scene.now_ns - token_ns);
        pause.most_steps = std::max(pause.most_steps, sum(&Observation::steps_total) - steps);
        token_ns = scene.now_ns;
        steps = sum(&Observation::steps_total);
        tokens = sum(&Observation::output_tokens_total);
      }
    }
    if (!more) {
      scene.tick();
    }
  }
  return pause;
}

// A member hangs at each of 20 points: before its group forms, while it does, while it serves, and
// while it splits. The other's requests go on after the watchdog's time, which looks 16 times in
// it, and two steps. Events take a nanosecond here.
TEST(Failures, TheOthersPauseForTheWatchdogsTimeAndTwoSteps) {
  int noticed = 0;
  for (int scene_number = 0; scene_number < 80; ++scene_number) {
    const int point = scene_number / 4;
    const GroupBy by = scene_number % 2 == 0 ? GroupBy::kShards : GroupBy::kLayers;
    GroupScene scene(options_of(2));
    if (point >= 10) {
      ASSERT_TRUE(scene.want({{0, 1}}, by).ok());
      scene.settle();
    }
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 30);
    }
    if (point > 0) {
      (void)(point < 10 ? scene.want({{0, 1}}, by) : scene.want({{0}, {1}}));
    }
    for (int round = 0; round < 2 * (point % 10); ++round) {
      scene.ready();
      scene.work(round % 2);
    }
    scene.devices.hang(ReplicaId{scene_number / 2 % 2});
    const Pause pause = pause_until_the_end(scene);
    settle_with_time(scene);
    scene.expect_all_answered();
    EXPECT_LT(pause.longest_ns, kTimeout + kTimeout / 16 + kNsPerMs);
    EXPECT_LE(pause.most_steps, 2);
    noticed += pause.longest_ns >= kTimeout ? 1 : 0;
    ASSERT_FALSE(testing::Test::HasFailure()) << "point " << point << ", scene " << scene_number;
  }
  EXPECT_GT(noticed, 40) << "the others waited for the one that hung";
}

// Lets requests move between two replicas, if that can be had. `pair` numbers the pairs.
void move_some(GroupScene& scene, int pair) {
  const int replicas = static_cast<int>(scene.fleet->size());
  (void)scene.fleet->migrate(ReplicaId{pair / replicas}, ReplicaId{pair % replicas}, 2,
                             scene.now_ns);
}

// One or two members hang or report that they have failed at random moments: idle, in a step, while
// a form changes, while devices drop or fetch, before and after an exchange. Devices may also fail
// to take what a step needs. All requests end with the right tokens, and no other replica goes out
// of service.
TEST(Failures, MembersFailAtRandomMoments) {
  int in_change = 0;
  int in_group = 0;
  int steps_of_failed = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    GroupScene::Options options = options_of(seed % 3 == 0 ? 2 : 4);
    options.morphs = below(3) > 0;
    options.steps_at_once = 1 + below(3);
    options.scale = std::array{ScalePolicy::kOff, ScalePolicy::kPaper,
                               ScalePolicy::kJoint}[static_cast<std::size_t>(below(3))];
    options.drop = below(2) == 0 && options.scale != ScalePolicy::kPaper ? DropPolicy::kJoint
                                                                         : DropPolicy::kOff;
    GroupScene scene(options);
    const std::vector<std::vector<std::vector<int>>> wishes =
        options.replicas == 2 ? std::vector<std::vector<std::vector<int>>>{{{0, 1}}, {{0}, {1}}}
                              : std::vector<std::vector<std::vector<int>>>{
                                    {{0, 1}}, {{2, 3}}, {{0, 1, 2, 3}}, {{0}, {1}, {2}, {3}}};
    const int moment = below(400);
    int no_pages = 3;  // fewer than the failed attempts that end a request
    const ReplicaId first{below(options.replicas)};
    const bool both = options.replicas > 2 && below(2) == 0;
    const int second_moment = both ? moment + 1 + below(100) : -1;
    for (int event = 0; event < 600; ++event) {
      if (event == moment || event == second_moment) {
        const ReplicaId victim{event == moment ? first.value : first.value ^ (1 + below(2))};
        scene.devices.hang(victim);
        if (seed % 2 == 0) {
          scene.send(DevicesFailed{"has lost memory"}, victim);
        }
        in_change += scene.changing() ? 1 : 0;
        in_group += scene.devices.grouped() ? 1 : 0;
      }
      const int dice = below(100);
      if (dice < 1) {
        lower_a_group(scene, below(kGroupLayers));
      } else if (dice < 6) {
        scene.arrive(below(6), 1 + below(40), 1 + below(30));
      } else if (dice < 9) {
        (void)scene.want(wishes[static_cast<std::size_t>(below(static_cast<int>(wishes.size())))],
                         below(3) == 0 ? GroupBy::kLayers : GroupBy::kShards);
      } else if (dice < 13) {
        move_some(scene, below(options.replicas * options.replicas));
      } else if (dice < 44) {
        const bool fails = no_pages > 0 && below(12) == 0;
        scene.ready(0,
                    fails ? std::optional(Error{ErrorCode::kExhausted, "no page"}) : std::nullopt);
        no_pages -= fails ? 1 : 0;
      } else {
        scene.work(below(options.replicas));
      }
    }
    scene.arrive(below(6), 20, 20);  // so that the hang is noticed, if it was idle
    settle_with_time(scene);
    for (const auto& [id, request] : scene.asked) {
      EXPECT_FALSE(scene.sink.seen.at(id).refused.has_value());
      scene.expect_answer(id);
    }
    EXPECT_TRUE(scene.fleet->idle());
    EXPECT_LE(scene.sink.groups ? scene.sink.groups->failed.size() : 0U, both ? 2U : 1U);
    steps_of_failed += scene.devices.steps_of_failed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(in_change, 20);
  EXPECT_GT(in_group, 20);
  EXPECT_GT(steps_of_failed, 0);
}

}  // namespace
}  // namespace protean
