// Replicas whose devices join, hold other shards, become one and part again while sequences go on:
// every token has the bits that it has on one device.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cost/memory.h"
#include "worker/join_scene_for_test.h"

namespace protean {
namespace {

// What each device holds once the homes' copies of a component are one: divided by shards, or kept
// by the home that the layer falls to.
std::vector<ShardRun> one_copy(const Form& form, int homes, int layer, Component component,
                               bool by_layers) {
  std::vector<ShardRun> runs;
  const int each = static_cast<int>(form.group.size()) / homes;
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    const int home = device / each;
    ShardRun run = form.group[static_cast<std::size_t>(device)].of(layer, component);
    if (by_layers) {
      const int keeper = layer * homes / kJoinLayers;
      const bool keeps =
          component == Component::kEmbeddings ? home == 0 || home == homes - 1 : home == keeper;
      runs.push_back(keeps ? run : ShardRun());
    } else {
      run.count /= homes;
      run.first += home * run.count;
      runs.push_back(run);
    }
  }
  return runs;
}

// Drops the copies of everything in the order given, and remembers what there was.
std::vector<HoldShards> drop(JoinScene& fleet, JoinScene::Group& group, bool by_layers) {
  std::vector<HoldShards> back;
  for (const auto& [layer, component] : components()) {
    HoldShards before{layer, component, {}};
    for (const Holding& holding : group.form.group) {
      before.runs.push_back(holding.of(layer, component));
    }
    back.push_back(std::move(before));
    fleet.apply(group, HoldShards{layer, component,
                                  one_copy(group.form, group.homes, layer, component, by_layers)});
  }
  std::reverse(back.begin(), back.end());
  return back;
}

std::vector<std::vector<float>> alone(const JoinCase& which, int replicas, int talks) {
  JoinScene fleet(which, replicas, talks);
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  return fleet.seen();
}

class Join : public testing::TestWithParam<std::tuple<JoinCase, int, bool>> {};

// All replicas at once, by shards or by layers, and back.
TEST_P(Join, HasTheBitsOfReplicasThatStandAlone) {
  const auto& [which, replicas, by_layers] = GetParam();
  JoinScene fleet(which, replicas, 2 * replicas);
  fleet.step();
  JoinScene::Group group = fleet.join(fleet.groups);
  const std::vector<JoinScene::Group> apart = std::exchange(fleet.groups, {group});
  JoinScene::Group& wide = fleet.groups.front();
  fleet.step();
  std::vector<HoldShards> back = drop(fleet, wide, by_layers);
  EXPECT_EQ(fleet.worker(0).use().span_ns, 0) << "the replicas do not serve as one yet";
  fleet.unify(wide);
  fleet.step();
  EXPECT_GT(fleet.worker(0).use().span_ns, 0);
  EXPECT_GT(fleet.worker(0).use().busy_ns, 0);
  fleet.apply(wide, ResizeKv{wide.form.kv.blocks + 7});
  fleet.step();
  fleet.apply(wide, ResizeKv{wide.form.kv.blocks - 7});
  fleet.apply(wide, SwapComponent{1, Component::kMlp, Precision::kW8});
  fleet.apply(wide, SwapComponent{1, Component::kMlp, which.precision});
  fleet.divide(wide, replicas);
  EXPECT_EQ(fleet.worker(0).use().span_ns, 0);
  fleet.step();
  for (const HoldShards& hold : back) {
    fleet.apply(wide, hold);
  }
  fleet.worker(0).part();
  fleet.groups = apart;
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  EXPECT_EQ(fleet.seen(), alone(which, replicas, 2 * replicas));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Join,
    testing::Combine(testing::Values(JoinCase{"bf16"},
                                     JoinCase{"bf16_int8kv", Precision::kBf16, KvPrecision::kInt8},
                                     JoinCase{"w8", Precision::kW8},
                                     JoinCase{"w8a8_int8kv", Precision::kW8A8, KvPrecision::kInt8}),
                     testing::Values(2, 4), testing::Bool()),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) +
             (std::get<2>(info.param) ? "_layers" : "_shards");
    });
INSTANTIATE_TEST_SUITE_P(ThreeStages, Join,
                         testing::Combine(testing::Values(JoinCase{"bf16"}), testing::Values(3),
                                          testing::Values(true)));

void take_back(JoinScene& fleet, JoinScene::Group& group, int homes,
               const std::vector<HoldShards>& back) {
  fleet.divide(group, homes);
  for (const HoldShards& hold : back) {
    fleet.apply(group, hold);
  }
}

// 1, 2, 4, 2, 1 devices: pairs become wide replicas, which then join themselves.
void join_in_two_steps(bool by_layers) {
  const JoinCase which{"bf16"};
  JoinScene fleet(which, 4, 8);
  const std::vector<JoinScene::Group> narrow = fleet.groups;
  fleet.step();
  fleet.groups = {fleet.join({narrow[0], narrow[1]}), fleet.join({narrow[2], narrow[3]})};
  std::vector<std::vector<HoldShards>> back;
  for (JoinScene::Group& group : fleet.groups) {
    back.push_back(drop(fleet, group, by_layers));
    fleet.unify(group);
  }
  const std::vector<JoinScene::Group> pairs = fleet.groups;
  fleet.groups = {fleet.join(pairs)};
  const std::vector<HoldShards> back_to_pairs = drop(fleet, fleet.groups[0], by_layers);
  fleet.unify(fleet.groups[0]);
  fleet.step();
  take_back(fleet, fleet.groups[0], 2, back_to_pairs);
  fleet.worker(0).part();
  fleet.groups = pairs;
  for (std::size_t i = 0; i < 2; ++i) {
    take_back(fleet, fleet.groups[i], 2, back[i]);
    fleet.worker(fleet.groups[i].leader).part();
  }
  fleet.groups = narrow;
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  EXPECT_EQ(fleet.seen(), alone(which, 4, 8));
}

TEST(JoinOfWideReplicas, HasTheBitsOfReplicasThatStandAlone) {
  join_in_two_steps(false);
}

// Blocks of the pairs lie behind each other, and go behind each other again.
TEST(JoinOfPipelines, HasTheBitsOfReplicasThatStandAlone) {
  join_in_two_steps(true);
}

// A pipeline of two stages and a replica, which has fewer blocks, become a pipeline of three. The
// pipeline's KV has grown since it was formed, so its last blocks lie at their own places. If the
// second stage of the pipeline keeps the middle layer, it fetches it.
void join_unequal_homes(const JoinCase& which, bool replica_first, bool fetches) {
  JoinScene fleet(which, 3, 6);
  const std::vector<JoinScene::Group> narrow = fleet.groups;
  fleet.step();
  const std::size_t alone_at = replica_first ? 0 : 2;
  JoinScene::Group pair =
      fleet.join({narrow[replica_first ? 1 : 0], narrow[replica_first ? 2 : 1]});
  fleet.groups = {pair, narrow[alone_at]};
  const std::vector<HoldShards> back = keep_at(fleet, fleet.groups[0], {0, 0, 1});
  fleet.unify(fleet.groups[0]);
  fleet.apply(fleet.groups[0], ResizeKv{2 * kJoinBlocks + 9});
  fleet.step();
  pair = fleet.groups[0];
  fleet.groups = {replica_first ? fleet.join({narrow[0], pair}) : fleet.join({pair, narrow[2]})};
  JoinScene::Group& wide = fleet.groups[0];
  std::vector<int> keepers = replica_first ? std::vector<int>{1, 0, 2} : std::vector<int>{0, 2, 1};
  if (fetches) {
    keepers = replica_first ? std::vector<int>{1, 2, 0} : std::vector<int>{0, 1, 2};
  }
  const std::vector<HoldShards> back_to_pair = keep_at(fleet, wide, keepers);
  fleet.unify(wide);
  fleet.apply(wide, ResizeKv{wide.form.kv.blocks + 5});
  fleet.step();
  fleet.apply(wide, ResizeKv{wide.form.kv.blocks - 5});
  take_back(fleet, wide, 2, back_to_pair);
  fleet.worker(0).part();
  fleet.groups = {pair, narrow[alone_at]};
  fleet.apply(fleet.groups[0], ResizeKv{2 * kJoinBlocks});
  take_back(fleet, fleet.groups[0], 2, back);
  fleet.worker(pair.leader).part();
  fleet.groups = narrow;
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  EXPECT_EQ(fleet.seen(), alone(which, 3, 6));
}

TEST(JoinOfUnequalHomes, HasTheBitsOfReplicasThatStandAlone) {
  const JoinCase which{"bf16_int8kv", Precision::kBf16, KvPrecision::kInt8};
  for (const bool replica_first : {false, true}) {
    for (const bool fetches : {false, true}) {
      join_unequal_homes(which, replica_first, fetches);
    }
  }
}

// Sequences move with their KV between groups and replicas whose devices hold other layers and
// other heads.
TEST(MoveBetweenGroups, HasTheBitsOfReplicasThatStandAlone) {
  for (const JoinCase& which :
       {JoinCase{"bf16"}, JoinCase{"int8kv", Precision::kBf16, KvPrecision::kInt8}}) {
    const auto expected = alone(which, 5, 5);
    for (const bool first_by_layers : {false, true}) {
      for (const bool second_by_layers : {false, true}) {
        JoinScene fleet(which, 5, 5);
        const std::vector<JoinScene::Group> narrow = fleet.groups;
        fleet.step();
        fleet.groups = {fleet.join({narrow[0], narrow[1]}), fleet.join({narrow[2], narrow[3]}),
                        narrow[4]};
        JoinScene::Group& first = fleet.groups[0];
        JoinScene::Group& second = fleet.groups[1];
        drop(fleet, first, first_by_layers);
        drop(fleet, second, second_by_layers);
        fleet.unify(first);
        fleet.unify(second);
        fleet.step();
        fleet.move(0, first, second, 40);
        fleet.move(2, second, first, 60);
        fleet.step();
        fleet.move(0, second, fleet.groups[2], 20);
        fleet.move(4, fleet.groups[2], first, 40);
        for (int i = 0; i < 60; ++i) {
          fleet.step();
        }
        EXPECT_EQ(fleet.seen(), expected)
            << which.name << (first_by_layers ? ", layers to " : ", shards to ")
            << (second_by_layers ? "layers" : "shards");
      }
    }
  }
}

// Its group is about to change what its devices hold.
TEST(MoveBetweenGroups, IsCalledOffOnceADeviceOfTheSourceHasFailed) {
  JoinScene fleet(JoinCase{"bf16"}, 4, 4);
  const std::vector<JoinScene::Group> narrow = fleet.groups;
  fleet.step();
  fleet.groups = {fleet.join({narrow[0], narrow[1]}), fleet.join({narrow[2], narrow[3]})};
  for (JoinScene::Group& group : fleet.groups) {
    drop(fleet, group, true);
    fleet.unify(group);
  }
  fleet.step();
  fleet.groups = {fleet.groups[1]};
  fleet.worker(1).give_up();
  std::atomic<bool> copied = false;
  fleet.worker(2).copy_blocks(fleet.worker(0), {{.from = 0, .to = 40}}, [&] { copied = true; });
  fleet.step();  // comes after the copy
  EXPECT_FALSE(copied);
}

// Goes forth and back by random steps of random kinds, and turns round at random places.
TEST(JoinAtRandom, HasTheBitsOfReplicasThatStandAlone) {
  const JoinCase which{"w8", Precision::kW8};
  const auto expected = alone(which, 2, 6);
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    JoinScene fleet(which, 2, 6);
    const std::vector<JoinScene::Group> apart = fleet.groups;
    for (int round = 0; round < 4; ++round) {
      fleet.groups = {fleet.join(apart)};
      JoinScene::Group& group = fleet.groups.front();
      const Form whole = group.form;
      std::vector<std::pair<int, Component>> order = components();
      std::shuffle(order.begin(), order.end(), random);
      order.resize(1 + random() % order.size());
      for (const auto& [layer, component] : order) {
        const bool by_layers = random() % 2 == 0;
        fleet.apply(group, HoldShards{layer, component,
                                      one_copy(group.form, 2, layer, component, by_layers)});
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const auto& [layer, component] : order) {
        HoldShards back{layer, component, {}};
        for (const Holding& holding : whole.group) {
          back.runs.push_back(holding.of(layer, component));
        }
        fleet.apply(group, back);
      }
      fleet.worker(0).part();
      fleet.groups = apart;
      fleet.step();
    }
    for (int i = 0; i < 60; ++i) {
      fleet.step();
    }
    EXPECT_EQ(fleet.seen(), expected) << "seed " << seed;
  }
}

TEST(JoinAhead, StepsAreFetchedWhileOthersAreCommitted) {
  const JoinCase which{"bf16"};
  for (const bool by_layers : {false, true}) {
    JoinScene fleet(which, 2, 4);
    const std::vector<JoinScene::Group> apart = fleet.groups;
    fleet.groups = {fleet.join(apart)};
    JoinScene::Group& group = fleet.groups.front();
    std::vector<HoldShards> there;
    std::vector<HoldShards> back;
    for (const auto& [layer, component] : components()) {
      there.push_back({layer, component, one_copy(group.form, 2, layer, component, by_layers)});
      back.insert(back.begin(), {layer, component, {{0, kJoinShards}, {0, kJoinShards}}});
    }
    for (int round = 0; round < 2; ++round) {
      fleet.apply_ahead(group, there, 2);
      fleet.unify(group);
      fleet.step();
      fleet.divide(group, 2);
      fleet.apply_ahead(group, back, 2);
    }
    fleet.worker(0).part();
    fleet.groups = apart;
    for (int i = 0; i < 60; ++i) {
      fleet.step();
    }
    EXPECT_EQ(fleet.seen(), alone(which, 2, 4));
  }
}

// Two replicas that have joined and divided the MLP of the first layer, in which device 0 can stop.
struct StoppedStep {
  explicit StoppedStep(const JoinCase& which) : fleet(which, 2, 4) {
    fleet.groups = {fleet.join(fleet.groups)};
    fleet.apply(group(), drop_of(0, Component::kMlp));
  }
  JoinScene::Group& group() { return fleet.groups.front(); }
  HoldShards drop_of(int layer, Component component) {
    return {layer, component, one_copy(group().form, 2, layer, component, false)};
  }
  // Runs a step. Device 0 has handed rows over after the first attention, and stops when it has
  // taken those that it needs for the MLP, where device 1 waits for it: both have attended the
  // first layer and no other one. Then does `meanwhile`, which must release `goes_on`.
  void step(const std::function<void()>& meanwhile) {
    fleet.progress().guard(0, [this] {
      if (++told == 2) {
        goes_on.acquire();
      }
      return true;
    });
    fleet.step(meanwhile);
  }
  std::int64_t moved() { return fleet.worker(0).kv_bytes_moved_early(); }
  // Waits until so much is moved and all background threads have looked at what they were given
  // before.
  void await(std::int64_t bytes) {
    for (int i = 0; i < 120'000 && moved() < bytes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (int replica = 0; replica < 2; ++replica) {
      std::binary_semaphore looked(0);
      fleet.worker(replica).in_background([&looked](const Pace&) {
        looked.release();
        return false;
      });
      looked.acquire();
    }
  }
  // Returns the bytes of a layer that are exchanged: a half of each slot in which blocks live.
  std::int64_t layer_bytes() {
    constexpr std::int64_t kSlots = 2 * 15;  // of each home's talks
    return kSlots * kv_layer_block_bytes(join_spec(), group().form.kv) / 2;
  }
  std::vector<std::vector<float>> seen_in_the_end() {
    for (int i = 0; i < 60; ++i) {
      fleet.step();
    }
    return fleet.seen();
  }

  std::binary_semaphore goes_on{0};
  int told = 0;  // how often device 0 was about to tell its progress
  JoinScene fleet;
};

// All KV of the layer that the step has left moves before the step ends, and none of the next one.
TEST(JoinMovesKv, OnceTheStepHasLeftTheLayer) {
  JoinCase which{"bf16_int8kv", Precision::kBf16, KvPrecision::kInt8};
  const auto expected = alone(which, 2, 4);
  for (const bool early : {true, false}) {
    which.moves_kv_early = early;
    StoppedStep scene(which);
    const std::vector<MorphStep> steps = {scene.drop_of(0, Component::kAttention),
                                          scene.drop_of(1, Component::kAttention)};
    scene.fleet.prepare(scene.group(), steps);
    const std::int64_t bytes = early ? scene.layer_bytes() : 0;
    scene.step([&] {
      scene.fleet.commit_prepared(scene.group(), steps, [&] {
        scene.await(bytes);
        EXPECT_EQ(scene.moved(), bytes);
        scene.goes_on.release();
      });
    });
    EXPECT_EQ(scene.seen_in_the_end(), expected);
  }
}

TEST(JoinMovesKv, NotBeforeTheEntriesThatUseTheLayer) {
  const JoinCase which{"bf16"};
  const auto expected = alone(which, 2, 4);
  {
    StoppedStep scene(which);
    const std::vector<MorphStep> steps = {scene.drop_of(0, Component::kAttention)};
    scene.fleet.prepare(scene.group(), steps);
    scene.step([&] {
      scene.fleet.worker(0).move_blocks({});
      scene.fleet.commit_prepared(scene.group(), steps, [&] {
        scene.await(0);
        EXPECT_EQ(scene.moved(), 0) << "blocks may move before";
        scene.goes_on.release();
      });
    });
    EXPECT_EQ(scene.seen_in_the_end(), expected);
  }
  StoppedStep scene(which);
  const std::vector<MorphStep> there = {scene.drop_of(0, Component::kAttention)};
  const std::vector<MorphStep> back = {
      HoldShards{0, Component::kAttention, {{0, kJoinShards}, {0, kJoinShards}}}};
  scene.fleet.prepare(scene.group(), there);
  scene.step([&] {
    scene.fleet.commit_prepared(scene.group(), there, [&] {
      scene.await(scene.layer_bytes());
      scene.fleet.prepare(scene.group(), back);
      scene.fleet.commit_prepared(scene.group(), back, [&] {
        scene.await(0);
        EXPECT_EQ(scene.moved(), scene.layer_bytes()) << "the way there has not ended";
        scene.goes_on.release();
      });
    });
  });
  EXPECT_EQ(scene.seen_in_the_end(), expected);
}

// A step that fails or is aborted leaves what devices hold, and gives back all pages.
TEST(JoinThatFails, LeavesTheFormThatItHad) {
  const JoinCase which{"bf16"};
  JoinScene fleet(which, 2, 4);
  const std::vector<JoinScene::Group> apart = fleet.groups;
  const HoldShards alone_in_group{0, Component::kMlp, {{0, 2}, {2, 2}}};
  fleet.worker(0).prepare(MorphId{1000}, alone_in_group);
  EXPECT_TRUE(fleet.ears[0]->ready(1000).failure) << "the replicas are not joined";
  fleet.groups = {fleet.join(apart)};
  JoinScene::Group& group = fleet.groups.front();
  const std::vector<HoldShards> back = drop(fleet, group, true);
  for (int i = 0; i < 5; ++i) {
    const auto id = static_cast<std::uint64_t>(2000 + i);
    fleet.worker(0).prepare(MorphId{id}, back.front());
    if (i % 2 == 0) {
      fleet.ears[0]->ready(id);
    }
    fleet.worker(0).abort(MorphId{id});
  }
  for (const HoldShards& hold : back) {
    fleet.apply(group, hold);  // counts the free pages of all devices
  }
  fleet.worker(0).part();
  fleet.groups = apart;
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  EXPECT_EQ(fleet.seen(), alone(which, 2, 4));
}

}  // namespace
}  // namespace protean
