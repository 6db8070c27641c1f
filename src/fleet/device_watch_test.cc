// Tests when devices count as failed, without a fleet.

#include "fleet/device_watch.h"

#include <gtest/gtest.h>

#include <memory>

#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

// Replica 0 has begun a step, replica 1 has nothing to do.
TEST(DeviceWatch, ADeviceThatEndsNothingIsLateUnlessTheWholeProcessWasStopped) {
  constexpr TimeNs kTimeout = 10 * kNsPerS;
  GroupSink sink;
  const Form form = group_form(24);
  const PageBudget budget = GroupScene::budget_of(form);
  GroupedDevices devices({form, form}, budget);
  std::vector<Station> stations(2);
  const std::vector<Observation> seen(2);
  const Grouping grouping({.spec = group_spec(), .budget = budget, .form = form}, stations, sink);
  const LiveMigrations migrations(grouping, stations, seen, nullptr);
  DeviceWatch watch(grouping, stations, migrations);
  for (std::size_t i = 0; i < stations.size(); ++i) {
    stations[i].executor = std::make_unique<HomeExecutor>(devices.executor(i));
    stations[i].engine =
        std::make_unique<Engine>(group_engine(form, budget, true), *stations[i].executor, sink);
    watch.set_timeout(ReplicaId{static_cast<std::int32_t>(i)}, kTimeout);
  }
  EXPECT_EQ(watch.look_within_ns(), std::nullopt) << "nothing is to be done";

  Request request;
  request.id = RequestId{1};
  request.prompt.assign(8, 7);
  request.max_tokens = 4;
  stations[0].engine->handle({0, Arrival{request}});
  EXPECT_LE(watch.look_within_ns(), kTimeout / 16) << "no failure is noticed much later";
  EXPECT_TRUE(watch.late_steps(0, 0, 0).empty());
  EXPECT_TRUE(watch.late_steps(0, 1, kTimeout - 1).empty());
  EXPECT_TRUE(watch.late_steps(0, kTimeout, 2 * kTimeout).empty()) << "the process was stopped";
  EXPECT_TRUE(watch.late_steps(0, 1, 3 * kTimeout - 1).empty());
  watch.ended(ReplicaId{0}, 3 * kTimeout - 1);
  EXPECT_TRUE(watch.late_steps(0, 1, 3 * kTimeout).empty()) << "a copy has ended";
  EXPECT_EQ(watch.late_steps(0, 1, 4 * kTimeout), std::vector{ReplicaId{0}});
  EXPECT_TRUE(watch.late_steps(1, 1, 4 * kTimeout).empty());
}

// Devices that part meet once more, so the partner's next step waits for the member that hangs. If
// the partner has the only request, no engine waits for a step of that member.
TEST(DeviceWatch, AMemberThatHangsWhileItsGroupPartsIsBlamedAndNotItsPartner) {
  for (const int requests : {1, 2}) {
    for (const int victim : {0, 1}) {
      GroupScene scene({.replicas = 2, .device_timeout_ns = 10 * kNsPerS});
      ASSERT_TRUE(scene.want({{0, 1}}).ok());
      scene.settle();
      if (victim == 0) {  // the router takes turns, and the next request is for the partner
        scene.arrive(0, 8, 2);
        scene.settle();
      }
      ASSERT_TRUE(scene.want({{0}, {1}}).ok());
      for (int round = 0; round < 1'000 && scene.changing(); ++round) {
        ASSERT_TRUE(scene.ready() || scene.work(0) || scene.tick());
      }
      ASSERT_TRUE(scene.devices.grouped()) << "the devices are told to part and have not yet";
      scene.devices.hang(ReplicaId{victim});
      for (int topic = 0; topic < requests; ++topic) {
        scene.arrive(topic, 20, 10);
      }
      for (int round = 0; round < 1'000 && !scene.fleet->idle(); ++round) {
        const bool more = scene.ready() || scene.work(0) || scene.work(1);
        ASSERT_TRUE(more || scene.tick());
      }
      scene.expect_all_answered();
      ASSERT_EQ(scene.sink.groups->failed.size(), 1U) << "its partner too";
      EXPECT_EQ(scene.sink.groups->failed.front().replica, ReplicaId{victim});
    }
  }
}

}  // namespace
}  // namespace protean
