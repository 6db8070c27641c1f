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
  GroupedDevices devices(2, 24, form, budget);
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
  EXPECT_EQ(watch.look_within_ns(), kTimeout / 4);
  EXPECT_TRUE(watch.late_steps(0, 0, 0).empty());
  EXPECT_TRUE(watch.late_steps(0, 1, kTimeout - 1).empty());
  EXPECT_TRUE(watch.late_steps(0, kTimeout, 2 * kTimeout).empty()) << "the process was stopped";
  EXPECT_TRUE(watch.late_steps(0, 1, 3 * kTimeout - 1).empty());
  watch.ended(ReplicaId{0}, 3 * kTimeout - 1);
  EXPECT_TRUE(watch.late_steps(0, 1, 3 * kTimeout).empty()) << "a copy has ended";
  EXPECT_EQ(watch.late_steps(0, 1, 4 * kTimeout), std::vector{ReplicaId{0}});
  EXPECT_TRUE(watch.late_steps(1, 1, 4 * kTimeout).empty());
}

}  // namespace
}  // namespace protean
