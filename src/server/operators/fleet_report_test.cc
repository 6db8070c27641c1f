// Tests what operators are told of replicas that become one group and part again.

#include "server/operators/fleet_report.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/operators/form_json.h"
#include "server/operators/groups_json.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr ReplicaId kZero{0};
constexpr ReplicaId kOne{1};

// Two replicas of two layers in two shards, on a device each.
struct FleetReportTest : testing::Test {
  FleetReportTest() {
    alone.shards = wide.shards = joint.shards = 2;
    alone.group = {whole_model(2, 2, DeviceId{0})};
    alone.layer_precision = wide.layer_precision = joint.layer_precision =
        std::vector<LayerPrecision>(2);
    alone.kv.blocks = 10;
    wide.kv.blocks = 25;
    joint.kv.blocks = 20;
    wide.group = joint.group = {whole_model(2, 2, DeviceId{0}), whole_model(2, 2, DeviceId{1})};
    for (int device = 0; device < 2; ++device) {
      Holding& holding = wide.group[static_cast<std::size_t>(device)];
      holding.embeddings = {device, 1};
      holding.layers.assign(2, {{device, 1}, {device, 1}});
      joint.group[static_cast<std::size_t>(device)].layers[1].mlp = {device, 1};
    }
  }
  static GroupsStatus apart(const Form& form) {
    return {.groups = {{{kZero}, {}, form}, {{kOne}, {}, form}}};
  }
  static void report(FleetReport& fleet, const Form& form) {
    fleet.form(kZero, std::make_shared<const FormStatus>(FormStatus{.form = form, .wanted = form}));
  }
  static void report(FleetReport& fleet, GroupsStatus status) {
    fleet.groups(std::make_shared<const GroupsStatus>(std::move(status)));
  }
  // Returns the blocks of each set of holders, with their replicas: "0 1: 25".
  static std::string holders_of(const FleetReport& fleet) {
    std::string text;
    for (const auto& [replicas, form] : fleet.holders()) {
      text += text.empty() ? "" : ", ";
      for (const ReplicaId replica : replicas) {
        text += std::to_string(replica.value) + " ";
      }
      text += std::to_string(form.kv.blocks);
    }
    return text;
  }

  Form alone;
  Form wide;
  Form joint;
};

TEST_F(FleetReportTest, FollowsReplicasThatBecomeOneAndPart) {
  FleetReport fleet(2, {.form = alone, .wanted = alone});
  const std::vector<ReplicaId> each{kZero, kOne};
  const std::vector<ReplicaId> first{kZero, kZero};
  EXPECT_EQ(holders_of(fleet), "0 10, 1 10") << "nothing has been reported";
  EXPECT_EQ(fleet.serving(), each);

  GroupsStatus status = apart(alone);
  status.running = {{.record = {.replicas = {kZero, kOne}, .together = true}}};
  report(fleet, status);
  EXPECT_EQ(holders_of(fleet), "0 10, 1 10") << "the change has begun, no device is joined";
  status.running.front().joint_form = joint;
  report(fleet, status);
  EXPECT_EQ(holders_of(fleet), "0 1 20");
  EXPECT_EQ(fleet.serving(), each) << "each has its own requests";

  GroupsStatus together{.groups = {{{kZero, kOne}, GroupBy::kShards, wide}}};
  report(fleet, together);
  EXPECT_EQ(holders_of(fleet), "0 1 25");
  EXPECT_EQ(fleet.serving(), first);
  Form grown = wide;
  grown.kv.blocks = 30;
  report(fleet, grown);
  EXPECT_EQ(holders_of(fleet), "0 1 30") << "the group's engine knows it better";

  status = apart(alone);
  status.running = {{.record = {.replicas = {kZero, kOne}, .together = false}}};
  report(fleet, status);
  EXPECT_EQ(holders_of(fleet), "0 1 30") << "the group serves until its homes do";
  EXPECT_EQ(fleet.serving(), first);
  status.running.front().joint_form = joint;
  report(fleet, status);
  EXPECT_EQ(fleet.serving(), each);
  report(fleet, apart(alone));
  EXPECT_EQ(holders_of(fleet), "0 10, 1 10") << "the form of the group is old";
}

TEST_F(FleetReportTest, SumsTheLoadsOfReplicasThatServe) {
  FleetReport fleet(2, {.form = alone, .wanted = alone});
  EXPECT_EQ(fleet.sum().kv_blocks, 20);
  fleet.engine(kZero, {.running = 3, .kv_blocks = 25});
  report(fleet, GroupsStatus{.groups = {{{kZero, kOne}, GroupBy::kShards, wide}}});
  EXPECT_EQ(fleet.sum().kv_blocks, 25);
  EXPECT_EQ(fleet.sum().running, 3);
  EXPECT_EQ(fleet.seen(kZero).kv_blocks, 25);
  EXPECT_EQ(fleet.seen(kOne).kv_blocks, 0) << "its memory holds the group's KV";
  report(fleet, apart(alone));
  EXPECT_EQ(fleet.seen(kOne).kv_blocks, 10);
}

TEST_F(FleetReportTest, TellsHowLongTheDevicesOfAGroupIdle) {
  FleetReport fleet(2, {.form = alone, .wanted = alone});
  const auto bubbles = [&] {
    return shown_groups(fleet.groups_now(), 0).at("groups").at(0).at("bubble_share");
  };
  report(fleet, GroupsStatus{.groups = {{{kZero, kOne}, GroupBy::kShards, wide}}});
  EXPECT_TRUE(bubbles().is_null());
  fleet.engine(kZero, {.devices = {.busy_ns = 30, .span_ns = 40}});
  EXPECT_EQ(bubbles(), 0.25);
}

TEST_F(FleetReportTest, NumbersDevicesThroughTheFleetAndShowsTheirShards) {
  FleetReport fleet(2, {.form = alone, .wanted = alone});
  const PagesByDevice pages = [](const Form& form) {
    std::vector<DevicePages> all;
    for (std::size_t i = 0; i < form.group.size(); ++i) {
      all.push_back({.device = DeviceId{static_cast<std::int32_t>(i)},
                     .layers = {{1, 2}, {3, 4}},
                     .embeddings = 5,
                     .kv = form.kv.blocks});
    }
    return all;
  };
  const json::object apart_shown = shown_devices(fleet, pages);
  ASSERT_EQ(apart_shown.size(), 2U);
  EXPECT_EQ(apart_shown.at("1"),
            json::parse(R"({"device": 1, "layers": [[1,2],[3,4]], "embeddings": 5, "kv": 10,
                            "replica": 1, "holders": [1]})"));
  report(fleet, GroupsStatus{.groups = {{{kZero, kOne}, GroupBy::kShards, wide}}});
  const json::object shown = shown_devices(fleet, pages);
  ASSERT_EQ(shown.size(), 2U);
  EXPECT_EQ(shown.at("1").at("holders"), json::parse("[0, 1]"));
  EXPECT_EQ(shown.at("1").at("shards"),
            json::parse(R"({"of": 2, "embeddings": [1,1], "layers": [[1,1,1,1],[1,1,1,1]]})"));
  const json::object replicas = shown_replicas(fleet);
  EXPECT_EQ(replicas.at("1"), json::parse(R"({"serves_in": 0})"));
  EXPECT_TRUE(replicas.at("0").get_object().contains("pinned"));
}

TEST(ShownDevices, SayHowManyPagesADeviceLacks) {
  std::vector<DevicePages> pages(2);
  pages[1].lacking = 7;
  const json::array shown = shown_devices(pages);
  EXPECT_FALSE(shown.at(0).get_object().contains("lacking"));
  EXPECT_EQ(shown.at(1).at("lacking"), 7);
}

}  // namespace
}  // namespace protean
