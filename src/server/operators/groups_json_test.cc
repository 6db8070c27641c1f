#include "server/operators/groups_json.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>

namespace protean {
namespace {

TEST(GroupsJson, ChangesOfDifferentReplicasMayBeginAtTheSameMoment) {
  const RegroupRecord left{.replicas = {ReplicaId{0}, ReplicaId{1}}, .asked_ns = kNsPerS};
  const RegroupRecord right{.replicas = {ReplicaId{2}, ReplicaId{3}}, .asked_ns = kNsPerS};
  GroupsStatus status;
  status.running = {{.record = left, .stage = "joint steps"}, {.record = right}};
  EXPECT_EQ(shown_groups(status, 0).at("regrouping").as_array().size(), 2U);
  EXPECT_EQ(shown_grouping(status, 0).at("regrouping").as_array().size(), 2U);
  EXPECT_EQ(shown_groups(status, 0).at("regrouping").at(0).at("stage").as_string(), "joint steps");
  status.running.clear();
  status.history = {left, right};
  EXPECT_TRUE(shown_grouping(status, 0).at("regrouping").as_array().empty());
  EXPECT_EQ(shown_grouping(status, 0).at("regroupings").as_object().size(), 2U);
}

TEST(GroupsJson, AChangeSaysHowManyRequestsWereComputedAgain) {
  GroupsStatus status;
  status.history.push_back(
      {.replicas = {ReplicaId{0}, ReplicaId{1}}, .preempted = 2, .recomputed = 3});
  const auto shown = shown_groups(status, 0).at("history").at(0);
  EXPECT_EQ(shown.at("preempted").as_int64(), 2);
  EXPECT_EQ(shown.at("recomputed").as_int64(), 3);
}

}  // namespace
}  // namespace protean
