// Tests groups by layers for which the KV of their replicas shrinks.

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

// Returns the KV blocks of a replica or of the group that it stands for.
std::int64_t kv_blocks(const GroupScene& scene, int replica) {
  return scene.fleet->observe(ReplicaId{replica}).kv_blocks;
}

// The KV of a layer is larger than the weights that are dropped before it moves. So the replicas'
// KV shrinks first, and grows back when they have parted.
TEST(Regrouping, KvShrinksWhereALayersKvWouldNotFitOnTheWay) {
  for (const std::int64_t blocks : {60, 200}) {
    GroupScene scene({.blocks = blocks});
    for (int topic = 0; topic < 8; ++topic) {
      scene.arrive(topic, 60, 40);
    }
    for (int i = 0; i < 20; ++i) {
      scene.work(i % 2);
    }
    const auto changes = scene.want({{0, 1}}, GroupBy::kLayers);
    ASSERT_TRUE(changes.ok()) << changes.error().message;
    for (int i = 0; i < 2'000 && scene.changing(); ++i) {
      scene.ready();
      scene.work(i % 2);
    }
    EXPECT_EQ(scene.groups(), "01");
    EXPECT_EQ(scene.sink.groups->history.front().failure, "");
    EXPECT_GT(scene.sink.groups->history.front().kv_bytes, 0);
    scene.settle();
    EXPECT_EQ(kv_blocks(scene, 0) > 2 * blocks, blocks == 60) << "one device has two layers";
    for (int topic = 0; topic < 8; ++topic) {
      scene.arrive(topic, 60, 20);
    }
    ASSERT_TRUE(scene.want({{0}, {1}}).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1");
    EXPECT_EQ(kv_blocks(scene, 0), blocks);
    EXPECT_EQ(kv_blocks(scene, 1), blocks);
    scene.expect_all_answered();
  }
}

// A change has ended when a group serves, and its record goes on until the group has more KV.
TEST(Regrouping, StepsCountUntilTheKvOfAGroupHasGrown) {
  GroupScene scene(2);
  scene.arrive(1, 20, 70);
  scene.arrive(2, 20, 70);
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  while (scene.changing()) {
    scene.ready();
    scene.work(0);
    scene.work(1);
  }
  const RegroupRecord formed = scene.sink.groups->history.front();
  EXPECT_EQ(kv_blocks(scene, 0), 2 * 24);
  EXPECT_LT(formed.grown_ns, 0);
  const Observation& first = scene.sink.observed.at(ReplicaId{0});
  const std::int64_t steps = first.steps_total;
  while (first.steps_total < steps + 5) {
    ASSERT_TRUE(scene.work(0)) << "steps go on while the larger KV is prepared";
  }
  while (kv_blocks(scene, 0) == 2 * 24) {
    ASSERT_TRUE(scene.ready() || scene.work(0));
  }
  const RegroupRecord grown = scene.sink.groups->history.front();
  EXPECT_EQ(grown.done_ns, formed.done_ns);
  EXPECT_EQ(grown.grown_ns, scene.now_ns);
  EXPECT_EQ(grown.steps_meanwhile - formed.steps_meanwhile, first.steps_total - steps);
  EXPECT_GE(grown.steps_meanwhile, formed.steps_meanwhile + 5);
  scene.settle();
  scene.expect_all_answered();
}

TEST(Regrouping, ACounterOrderGivesShrunkKvBack) {
  for (int moment = 0; moment < 60; ++moment) {
    GroupScene scene({.blocks = 60});
    for (int topic = 0; topic < 6; ++topic) {
      scene.arrive(topic, 60, 30);
    }
    ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
    scene.go_on_to(moment);
    ASSERT_TRUE(scene.want({{0}, {1}}).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1") << moment;
    EXPECT_EQ(kv_blocks(scene, 0), 60) << moment;
    EXPECT_EQ(kv_blocks(scene, 1), 60) << moment;
    scene.expect_all_answered();
  }
}

TEST(Regrouping, NoPolicyFormsAGroupForWhichKvShrinksInVain) {
  for (const bool gains : {false, true}) {
    GroupScene scene({.blocks = gains ? 60 : 200, .drop = DropPolicy::kPaper});
    for (int topic = 0; topic < 10; ++topic) {
      scene.arrive(topic, gains ? 70 : 230, 10);  // three fill a replica
    }
    EXPECT_GT(scene.fleet->observe(ReplicaId{0}).kv_blocks_awaited, 0) << "the policy has a reason";
    scene.settle();
    scene.expect_all_answered();
    EXPECT_EQ(scene.sink.groups != nullptr && scene.sink.groups->together_total > 0, gains);
  }
}

// Else layers would stay dropped if the last request ended while the policy waits after a refusal.
TEST(Regrouping, APolicyThatWasRefusedLooksAgainWithoutAnEvent) {
  GroupScene scene({.blocks = 60, .morphs = false, .drop = DropPolicy::kPaper});
  for (int topic = 0; topic < 10; ++topic) {
    scene.arrive(topic, 230, 10);
  }
  EXPECT_GT(scene.fleet->observe(ReplicaId{0}).kv_blocks_awaited, 0) << "the policy has a reason";
  scene.settle();
  scene.expect_all_answered();
  EXPECT_TRUE(scene.tick()) << "a second after the refusal";
  EXPECT_FALSE(scene.tick());
}

TEST(Regrouping, AnOperatorsGroupPreemptsWhatASmallerKvCannotHold) {
  GroupScene scene({.blocks = 60});
  for (int topic = 0; topic < 8; ++topic) {
    scene.arrive(topic, 16, 48);  // of 16 blocks in the end, of which a replica has not enough
  }
  const auto full = [&](int replica) {
    return scene.fleet->observe(ReplicaId{replica}).kv_blocks_used == 60;
  };
  for (int i = 0; i < 500 && !(full(0) && full(1)); ++i) {
    scene.work(full(0) ? 1 : 0);
  }
  ASSERT_TRUE(full(0) && full(1));
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  scene.settle();
  scene.expect_all_answered();
  ASSERT_EQ(scene.sink.groups->history.size(), 1U);
  EXPECT_EQ(scene.sink.groups->history.front().failure, "");
  EXPECT_EQ(scene.sink.groups->history.front().preempted, 2) << "one of each replica";
}

TEST(Regrouping, KvShrinksForAPolicyIfWhatIsInUseFits) {
  const Form form = group_form(60);
  const PageBudget budget = GroupScene::budget_of(form);
  GroupedDevices devices({form}, budget);
  GroupSink sink;
  Engine engine(group_engine(form, budget, true), devices.executor(0), sink);
  for (std::uint64_t id = 1; id <= 2; ++id) {
    Request made{.id = RequestId{id}, .max_tokens = 10};
    made.prompt.assign(30, static_cast<TokenId>(id));
    engine.handle({1, Arrival{std::move(made)}, ReplicaId{0}});
  }
  const auto why = [&](std::int64_t blocks, bool may_preempt) {
    const Status room = check_room(engine, ReplicaId{0}, blocks, may_preempt);
    return room.ok() ? "" : room.error().message;
  };
  ASSERT_EQ(engine.observe().kv_blocks_used, 8);
  EXPECT_EQ(why(10, false), "");
  for (auto& [from, what] : devices.work(ReplicaId{0})) {
    engine.handle({2, std::move(what), from});
  }
  ASSERT_EQ(engine.observe().kv_blocks_used, 16) << "both are admitted";
  EXPECT_EQ(why(15, true), "");
  EXPECT_EQ(why(15, false), "KV of replica 0 has to shrink to 15 blocks, but 16 are in use");
  EXPECT_EQ(why(9, true),
            "KV of replica 0 has to shrink to 9 blocks, but a request needs 10: ask again when it "
            "has ended");
}

TEST(Regrouping, KvDoesNotShrinkBelowWhatARequestNeeds) {
  GroupScene scene({.blocks = 60});
  scene.arrive(1, 20, 20);
  scene.arrive(2, 200, 36);  // 59 blocks, on the second replica
  scene.work(0);
  scene.work(1);
  const auto changes = scene.want({{0, 1}}, GroupBy::kLayers);
  ASSERT_FALSE(changes.ok());
  EXPECT_EQ(changes.error().code, ErrorCode::kExhausted);
  EXPECT_NE(changes.error().message.find("a request needs 59"), std::string::npos)
      << changes.error().message;
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1");
  EXPECT_EQ(scene.sink.forms.at(ReplicaId{0}).kv_resizes_total, 0) << "none shrinks in vain";
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok()) << "the request has ended";
  scene.settle();
  EXPECT_EQ(scene.groups(), "01");
}

// A group keeps the KV of its replicas. Where that would have to shrink, it parts before replicas
// become a larger group: here, these have too few layers for that.
TEST(Regrouping, GroupsBecomeOneOnlyWithAllKvOfTheirReplicas) {
  for (const bool lowered : {false, true}) {
    GroupScene scene({.replicas = 4, .blocks = 240});
    ASSERT_TRUE(scene.want({{0, 1}, {2, 3}}).ok());
    scene.settle();
    ASSERT_EQ(scene.groups(), "01 23");
    if (lowered) {  // then more of the memory is free on the way
      FormWish lower{.layers = scene.form.layer_precision};
      for (auto& layer : lower.layers) {
        layer = {Precision::kBf16, Precision::kBf16};
      }
      for (const int group : {0, 2}) {
        scene.send(WantForm{1, lower}, ReplicaId{group});
        ASSERT_TRUE(scene.sink.form_answer->ok()) << scene.sink.form_answer->error().message;
      }
      scene.settle();
    }
    const auto changes = scene.want({{0, 1, 2, 3}}, GroupBy::kLayers);
    ASSERT_EQ(changes.ok(), lowered);
    if (!lowered) {
      EXPECT_EQ(changes.error().message,
                "these groups cannot be had: 4 replicas cannot divide 3 layers: group fewer "
                "replicas");
    }
    scene.settle();
    EXPECT_EQ(scene.groups(), lowered ? "0123" : "01 23");
    EXPECT_EQ(scene.sink.groups->failures_total, 0);
  }
}

TEST(Regrouping, ALargeRequestIsToldThatKvShrinksForAGroup) {
  GroupScene scene({.blocks = 60});
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  scene.arrive(1, 200, 36);  // 59 blocks
  const auto& refused = scene.sink.seen.at(RequestId{1}).refused;
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, ErrorCode::kUnavailable);
  EXPECT_NE(refused->message.find("replicas become a group"), std::string::npos)
      << refused->message;
}

TEST(Regrouping, KvThatCannotGrowBackAtOnceGrowsLater) {
  GroupScene scene({.blocks = 60});
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  scene.settle();
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  while (scene.changing()) {
    const bool more = scene.ready() || scene.work(0) || scene.work(1) || scene.tick();
    ASSERT_TRUE(more);
  }
  ASSERT_EQ(scene.devices.preparing.size(), 2U) << "the KV of each replica grows";
  for (int attempt = 0; attempt < 2; ++attempt) {
    ASSERT_TRUE(scene.ready(0, Error{ErrorCode::kExhausted, "no page"}));
    scene.settle();
    EXPECT_LT(kv_blocks(scene, 0), 60);
    EXPECT_EQ(kv_blocks(scene, 1), 60);
    while (scene.devices.preparing.empty()) {
      ASSERT_TRUE(scene.tick());
    }
  }
  scene.settle();
  EXPECT_EQ(kv_blocks(scene, 0), 60);
  EXPECT_FALSE(scene.fleet->next_deadline_ns().has_value());
}

TEST(Regrouping, KvThatShrankOnOneReplicaOnlyGrowsBack) {
  GroupScene scene({.blocks = 200});
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  ASSERT_EQ(scene.devices.preparing.size(), 2U);
  scene.ready(1, Error{ErrorCode::kExhausted, "no"});
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  const std::string& why = scene.sink.groups->history.front().failure;
  EXPECT_NE(why.find("replica 1 stays at 200 blocks and does not come to"), std::string::npos)
      << why;
  EXPECT_EQ(kv_blocks(scene, 0), 200);
  EXPECT_EQ(kv_blocks(scene, 1), 200);
}

// Lets the forms of two engines come to rest.
void let_forms_rest(GroupedDevices& devices, std::vector<Station>& stations) {
  for (int round = 0; round < 100; ++round) {
    std::vector<std::pair<ReplicaId, decltype(Event::what)>> events;
    if (!devices.preparing.empty()) {
      events.push_back(devices.ready(0, std::nullopt));
    }
    for (const ReplicaId replica : {ReplicaId{0}, ReplicaId{1}}) {
      for (auto& event : devices.work(replica)) {
        events.push_back(std::move(event));
      }
    }
    for (auto& [replica, what] : events) {
      stations[static_cast<std::size_t>(replica.value)].engine->handle(
          {2, std::move(what), replica});
    }
  }
}

// One replica's precision is lowered while KV shrinks.
TEST(Regrouping, PrecisionsAreComparedAgainOnceKvHasShrunk) {
  const Form form = group_form(60);
  const PageBudget budget = GroupScene::budget_of(form);
  GroupedDevices devices({form, form}, budget);
  GroupSink sink;
  std::vector<Station> stations(2);
  for (const int replica : {0, 1}) {
    const auto index = static_cast<std::size_t>(replica);
    EngineConfig engine = group_engine(form, budget, true);
    engine.replica = ReplicaId{replica};
    engine.morph->bounds.ladder.push_back(Precision::kBf16);
    engine.morph->ids_after = static_cast<std::uint64_t>(replica) << 16;
    stations[index].executor = std::make_unique<HomeExecutor>(devices.executor(index));
    stations[index].engine = std::make_unique<Engine>(engine, *stations[index].executor, sink);
  }
  const GroupConfig config{
      .devices = &devices, .spec = group_spec(), .budget = budget, .form = form};
  Group group;
  group.homes = {ReplicaId{0}, ReplicaId{1}};
  group.by = GroupBy::kLayers;
  Regrouping change(config, stations, sink, std::move(group), {form, form});
  std::uint64_t generation = 0;
  change.begin("a test", generation, 1);
  change.insist(true);
  change.advance(1);
  const std::int64_t blocks = stations[0].engine->kv_blocks_ahead();
  ASSERT_LT(blocks, 60);
  FormWish lower{.layers = form.layer_precision, .kv_blocks = blocks};
  lower.layers.front().mlp = Precision::kBf16;
  ASSERT_TRUE(stations[1].engine->lead_form(lower, 1).ok());
  let_forms_rest(devices, stations);
  ASSERT_TRUE(stations[0].engine->form_at_rest() && stations[1].engine->form_at_rest());
  change.advance(3);
  EXPECT_TRUE(change.ended());
  EXPECT_NE(change.record().failure.find("replica 1 stays at"), std::string::npos)
      << change.record().failure;
}

TEST(Regrouping, AFormThatNeverChangesKeepsItsKv) {
  GroupScene scene({.blocks = 60, .morphs = false});
  const auto changes = scene.want({{0, 1}}, GroupBy::kLayers);
  ASSERT_FALSE(changes.ok());
  EXPECT_NE(changes.error().message.find("KV of replica 0 has to shrink to"), std::string::npos)
      << changes.error().message;
}

TEST(Regrouping, AnOperatorsFormOfAGroupForWhichKvShrankIsThatOfItsReplicas) {
  GroupScene scene({.blocks = 60});
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  scene.settle();
  ASSERT_EQ(scene.groups(), "01");
  FormWish lower{.layers = scene.form.layer_precision};
  lower.layers.front().mlp = Precision::kBf16;
  scene.send(WantForm{1, lower}, ReplicaId{0});
  ASSERT_TRUE(scene.sink.form_answer->ok());
  scene.settle();
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.settle();
  for (const int replica : {0, 1}) {
    EXPECT_TRUE(scene.sink.forms.at(ReplicaId{replica}).pinned);
    EXPECT_EQ(scene.sink.forms.at(ReplicaId{replica}).form.layer_precision, lower.layers);
    EXPECT_GE(kv_blocks(scene, replica), 60);
  }
}

}  // namespace
}  // namespace protean
