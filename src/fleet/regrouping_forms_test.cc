// Tests replicas of unequal precisions that become one.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fleet/group_scene_for_test.h"
#include "fleet/regrouping.h"

namespace protean {
namespace {

constexpr std::int64_t kFullBlocks = 24;
constexpr std::int64_t kLargestBlocks = 40;

FormWish lower_at(int layer) {
  FormWish wish{.layers = group_form(kFullBlocks).layer_precision};
  wish.layers[static_cast<std::size_t>(layer)] = {Precision::kBf16, Precision::kBf16};
  return wish;
}

// A fleet whose second replica is at a precision that an operator chose.
struct UnequalScene : GroupScene {
  explicit UnequalScene(const Options& options) : GroupScene(options) {
    send(WantForm{1, lower_at(1)}, ReplicaId{1});
    EXPECT_TRUE(sink.form_answer->ok()) << sink.form_answer->error().message;
    settle();
  }
  const FormStatus& status(int replica) const { return sink.forms.at(ReplicaId{replica}); }
  void expect_first_as_before(int moment) const {
    EXPECT_EQ(status(0).form.layer_precision, form.layer_precision) << moment;
    EXPECT_EQ(status(0).form.kv.blocks, kFullBlocks) << moment;
    EXPECT_FALSE(status(0).pinned) << moment;
  }
};

TEST(UnequalPrecisions, ReplicasBecomeOneAtWhatAnOperatorChoseForOneOfThem) {
  for (const GroupBy by : {GroupBy::kShards, GroupBy::kLayers}) {
    UnequalScene scene({.largest_blocks = kLargestBlocks});
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 40);
    }
    for (int i = 0; i < 6; ++i) {
      scene.work(i % 2);
    }
    const auto changes = scene.want({{0, 1}}, by);
    ASSERT_TRUE(changes.ok()) << changes.error().message;
    EXPECT_EQ(scene.stage(), "waits for the replicas' forms");
    scene.settle();
    ASSERT_EQ(scene.groups(), "01");
    EXPECT_EQ(scene.sink.groups->failures_total, 0);
    EXPECT_EQ(scene.status(0).form.layer_precision, lower_at(1).layers);
    EXPECT_GE(scene.status(0).form.kv.blocks, 2 * kFullBlocks);
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 40);
    }
    scene.work(0);
    ASSERT_TRUE(scene.want({{0}, {1}}).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1");
    for (const int replica : {0, 1}) {
      EXPECT_EQ(scene.status(replica).form.layer_precision, lower_at(1).layers);
      EXPECT_TRUE(scene.status(replica).pinned);
    }
    scene.expect_all_answered();
  }
}

TEST(UnequalPrecisions, AReplicaHasItsFormAgainIfTheGroupDoesNotForm) {
  int formed = 0;
  int turned = 0;
  for (int moment = 0; formed < 3; ++moment) {
    ASSERT_LT(moment, 300) << "the group is there before";
    UnequalScene scene({.largest_blocks = kLargestBlocks});
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 30);
    }
    ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
    scene.go_on_to(moment);
    ASSERT_TRUE(scene.want({{0}, {1}}).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1") << moment;
    if (scene.sink.groups->together_total == 0) {
      scene.expect_first_as_before(moment);
      ++turned;
    } else {
      ++formed;
    }
    scene.expect_all_answered();
  }
  EXPECT_GT(turned, 0);
}

TEST(UnequalPrecisions, NoGroupFormsIfAReplicaDoesNotComeToTheOthersPrecisions) {
  UnequalScene scene({.largest_blocks = kLargestBlocks});
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  ASSERT_FALSE(scene.devices.preparing.empty());
  scene.ready(0, Error{ErrorCode::kExhausted, "no page"});
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  const std::string& why = scene.sink.groups->history.front().failure;
  EXPECT_NE(why.find("replica 0 stays at"), std::string::npos) << why;
  scene.expect_first_as_before(0);
}

TEST(UnequalPrecisions, DifferentPrecisionsThatAnOperatorChoseStay) {
  UnequalScene scene({.largest_blocks = kLargestBlocks});
  scene.send(WantForm{1, lower_at(2)}, ReplicaId{0});
  scene.settle();
  const auto refused = scene.want({{0, 1}}, GroupBy::kLayers);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted) << "another form may be chosen";
  EXPECT_EQ(refused.error().message.find("these groups cannot be had: replicas 0 and 1 have "
                                         "different forms, "),
            0U)
      << refused.error().message;
  EXPECT_EQ(scene.groups(), "0 1");
}

TEST(UnequalPrecisions, GroupsOfUnequalPrecisionsPartBeforeTheirReplicasBecomeOne) {
  GroupScene scene({.replicas = 4, .largest_blocks = 200});
  ASSERT_TRUE(scene.want({{0, 1}, {2, 3}}).ok());
  scene.settle();
  scene.send(WantForm{1, lower_at(0)}, ReplicaId{2});
  ASSERT_TRUE(scene.sink.form_answer->ok());
  scene.settle();
  const auto changes = scene.want({{0, 1, 2, 3}});
  ASSERT_TRUE(changes.ok()) << changes.error().message;
  EXPECT_EQ(std::ranges::count(*changes, false, &Regroup::together), 2);
  scene.settle();
  EXPECT_EQ(scene.groups(), "0123");
  EXPECT_EQ(scene.sink.groups->failures_total, 0);
  EXPECT_EQ(scene.sink.forms.at(ReplicaId{0}).form.layer_precision, lower_at(0).layers);
}

TEST(UnequalPrecisions, APipelineAndAReplicaOfUnequalMemoryBecomeOne) {
  GroupScene scene({.replicas = 3, .blocks = 60, .own_blocks = {12, 12, 60}});
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  scene.settle();
  FormWish wish = lower_at(0);
  wish.kv_blocks = 60;
  scene.send(WantForm{1, wish}, ReplicaId{2});
  ASSERT_TRUE(scene.sink.form_answer->ok()) << scene.sink.form_answer->error().message;
  scene.settle();
  for (int topic = 0; topic < 6; ++topic) {
    scene.arrive(topic, 20, 30);
  }
  const auto changes = scene.want({{0, 1, 2}}, GroupBy::kLayers);
  ASSERT_TRUE(changes.ok()) << changes.error().message;
  EXPECT_TRUE(std::ranges::all_of(*changes, &Regroup::together));
  scene.settle();
  EXPECT_EQ(scene.groups(), "012");
  EXPECT_EQ(scene.sink.groups->failures_total, 0);
  ASSERT_TRUE(scene.want({{0}, {1}, {2}}).ok());
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1 2");
  scene.expect_all_answered();
}

TEST(UnequalPrecisions, ABurstHasReplicasOfUnequalPrecisionsDropLayers) {
  for (const DropPolicy drop : {DropPolicy::kPaper, DropPolicy::kReleased}) {
    UnequalScene scene({.largest_blocks = kLargestBlocks, .drop = drop});
    for (int topic = 0; topic < 12; ++topic) {
      scene.now_ns += kNsPerS;  // votes are some time apart
      scene.arrive(topic, 60, 20);
    }
    scene.settle();
    scene.expect_all_answered();
    ASSERT_NE(scene.sink.groups, nullptr);
    EXPECT_GT(scene.sink.groups->together_total, 0);
    EXPECT_EQ(scene.sink.groups->failures_total, 0);
  }
}

// Two replicas whose forms follow no policy, at precisions that no operator chose.
struct JoiningScene {
  JoiningScene() {
    for (std::size_t i = 0; i < stations.size(); ++i) {
      EngineConfig engine = group_engine(form, budget, true);
      engine.replica = ReplicaId{static_cast<std::int32_t>(i)};
      engine.scheduler.largest_kv_blocks = kLargestBlocks;
      engine.morph->bounds.ladder.push_back(Precision::kBf16);
      engine.morph->ids_after = static_cast<std::uint64_t>(i) << 16;
      stations[i].executor = std::make_unique<HomeExecutor>(devices.executor(i));
      stations[i].engine = std::make_unique<Engine>(engine, *stations[i].executor, sink);
    }
  }
  void lower(std::size_t replica, int layer) {
    Engine& engine = *stations[replica].engine;
    engine.hold_form(true);
    ASSERT_TRUE(engine.lead_form(lower_at(layer), 1).ok());
    while (!engine.form_at_rest()) {
      if (!devices.preparing.empty()) {
        engine.handle({1, devices.ready(0, std::nullopt).second, ReplicaId{0}});
      }
      for (auto& [from, what] : devices.work(ReplicaId{static_cast<std::int32_t>(replica)})) {
        engine.handle({1, std::move(what), from});
      }
    }
    engine.hold_form(false);
  }
  void arrive(std::size_t replica, int prompt, int output) {
    Request made{.id = RequestId{replica + 1}, .max_tokens = output};
    made.prompt.assign(static_cast<std::size_t>(prompt), 7);
    stations[replica].engine->handle({1, Arrival{std::move(made)}, ReplicaId{0}});
  }
  Result<GroupForms> group_forms(bool insists, GroupBy by = GroupBy::kShards) const {
    std::vector<JoiningHome> homes;
    for (std::size_t i = 0; i < stations.size(); ++i) {
      const Engine& engine = *stations[i].engine;
      homes.push_back({ReplicaId{static_cast<std::int32_t>(i)}, *engine.form(), &engine});
    }
    return group_forms_of(config, homes, by, insists);
  }

  const Form form = group_form(kFullBlocks);
  const PageBudget budget = GroupScene::budget_of(form);
  GroupedDevices devices{{form, form}, budget};
  GroupSink sink;
  std::vector<Station> stations{2};
  const GroupConfig config{
      .devices = &devices, .spec = group_spec(), .budget = budget, .form = form};
};

TEST(GroupFormsOf, HomesGoToTheHighestPrecisionsIfTheirRequestsHaveRoom) {
  JoiningScene scene;
  scene.lower(0, 0);
  scene.lower(1, 1);
  ASSERT_GT(scene.stations[0].engine->form()->kv.blocks, kFullBlocks) << "lower weights are KV";
  for (const bool insists : {false, true}) {
    const auto group_forms = scene.group_forms(insists);
    ASSERT_TRUE(group_forms.ok()) << group_forms.error().message;
    EXPECT_EQ(group_forms->home.layer_precision, scene.form.layer_precision);
    EXPECT_EQ(group_forms->home.kv.blocks, kFullBlocks);
    EXPECT_TRUE(equally_precise(group_forms->wide, scene.form));
  }
}

TEST(GroupFormsOf, HomesGoToTheSmallestWeightsIfARequestNeedsTheirKv) {
  JoiningScene scene;
  scene.lower(0, 0);
  scene.stations[0].engine->promise_kv(kLargestBlocks, kLargestBlocks);  // as policies do
  scene.arrive(0, 4, 4 * static_cast<int>(kFullBlocks) + 8);
  const std::int64_t blocks = scene.stations[0].engine->form()->kv.blocks;
  ASSERT_GT(scene.stations[0].engine->largest_need(), kFullBlocks);
  const auto group_forms = scene.group_forms(true);
  ASSERT_TRUE(group_forms.ok()) << group_forms.error().message;
  EXPECT_EQ(group_forms->home.layer_precision, lower_at(0).layers);
  EXPECT_EQ(group_forms->home.kv.blocks, blocks) << "the other one's KV grows";
}

TEST(UnequalPrecisions, RequestsThatTheFormerKvHoldsAreToldThatItIsSmallerForNow) {
  JoiningScene scene;
  scene.lower(0, 0);
  scene.lower(1, 1);
  Group group;
  group.homes = {ReplicaId{0}, ReplicaId{1}};
  Regrouping change(scene.config, scene.stations, scene.sink, std::move(group),
                    {scene.form, scene.form});
  std::uint64_t generation = 0;
  change.begin("", generation, 1);
  change.advance(1);
  EXPECT_EQ(change.stage(), "waits for the replicas' forms") << "these go to full precision";
  scene.arrive(0, 4, 4 * static_cast<int>(kFullBlocks) + 8);
  const std::optional<Error>& refused = scene.sink.seen.at(RequestId{1}).refused;
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, ErrorCode::kUnavailable) << refused->message;
}

TEST(GroupFormsOf, KvInUseStaysUnlessAnOperatorInsists) {
  JoiningScene scene;
  scene.lower(1, 0);
  const std::int64_t blocks = scene.stations[1].engine->form()->kv.blocks;
  ASSERT_GT(blocks, kFullBlocks);
  for (std::uint64_t id = 1; id <= 2; ++id) {  // together they have more KV than full precision
    Request made{.id = RequestId{id}, .max_tokens = 20};
    made.prompt.assign(static_cast<std::size_t>(2 * kFullBlocks + 8), static_cast<TokenId>(id));
    scene.stations[1].engine->handle({1, Arrival{std::move(made)}, ReplicaId{1}});
    for (int step = 0; step < 4; ++step) {
      for (auto& [from, what] : scene.devices.work(ReplicaId{1})) {
        scene.stations[1].engine->handle({1, std::move(what), from});
      }
    }
  }
  ASSERT_GT(scene.stations[1].engine->observe().kv_blocks_used, kFullBlocks);
  const auto keeps = scene.group_forms(false);
  ASSERT_TRUE(keeps.ok()) << keeps.error().message;
  EXPECT_EQ(keeps->home.layer_precision, lower_at(0).layers);
  const auto preempts = scene.group_forms(true);
  ASSERT_TRUE(preempts.ok()) << preempts.error().message;
  EXPECT_EQ(preempts->home.layer_precision, scene.form.layer_precision);
}

}  // namespace
}  // namespace protean
