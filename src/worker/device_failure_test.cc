// Devices that hang in a group: the others part without them and compute the same tokens.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "worker/join_scene_for_test.h"

namespace protean {
namespace {

constexpr std::size_t kTokens = 8;  // that a talk draws

// Allows every token, once it is let.
class Hanging : public TokenConstraint {
 public:
  void allowed_after(std::span<const TokenId>, TokenMask mask) override {
    entered.release();
    goes_on.acquire();
    std::fill(mask.begin(), mask.end(), ~std::uint64_t{0});
  }
  std::binary_semaphore entered{0};
  std::binary_semaphore goes_on{0};
};

// Lets them go on, so that the threads of a scene can end.
struct LetGo {
  explicit LetGo(std::vector<std::shared_ptr<Hanging>> all) : hanging(std::move(all)) {}
  ~LetGo() {
    for (const auto& one : hanging) {
      one->goes_on.release();
    }
  }
  LetGo(const LetGo&) = delete;
  LetGo& operator=(const LetGo&) = delete;
  std::vector<std::shared_ptr<Hanging>> hanging;
};

// What two devices hold of a component if there is one copy.
std::vector<ShardRun> one_copy(int layer, Component component, bool by_layers) {
  const ShardRun all{0, kJoinShards};
  if (!by_layers) {
    return {{0, kJoinShards / 2}, {kJoinShards / 2, kJoinShards / 2}};
  }
  return component == Component::kEmbeddings ? std::vector{all, all}
         : layer == 0                        ? std::vector{all, ShardRun()}
                                             : std::vector{ShardRun(), all};
}

// The steps that drop one of two copies of everything.
std::vector<HoldShards> drops(bool by_layers) {
  std::vector<HoldShards> all;
  if (!by_layers) {
    all.push_back({0, Component::kEmbeddings, one_copy(0, Component::kEmbeddings, by_layers)});
  }
  for (const Component component : {Component::kMlp, Component::kAttention}) {
    for (int layer = 0; layer < kJoinLayers; ++layer) {
      all.push_back({layer, component, one_copy(layer, component, by_layers)});
    }
  }
  return all;
}

// Two replicas of one device each, of which one will hang.
struct FailingScene {
  FailingScene() : scene({.name = "bf16"}, 2, 2) {}

  CpuWorker& leader() { return scene.worker(0); }
  void prepare(const HoldShards& step) {
    const MorphId id{++last_id};
    leader().prepare(id, step);
    const MorphReady ready = scene.ears[0]->ready(id.value);
    ASSERT_FALSE(ready.failure) << ready.failure->message;
  }
  void commit_prepared() {
    leader().keep({live, live});
    leader().commit(MorphId{last_id});
  }
  void commit(const HoldShards& step) {
    prepare(step);
    commit_prepared();
  }
  void drop(const HoldShards& step) {
    commit(step);
    scene.ears[0]->done(last_id);
  }
  void fetch(const HoldShards& step) {
    const ShardRun all{0, kJoinShards};
    drop({step.layer, step.component, {all, all}});
  }
  // Makes one group of both, which drops what the first `count` steps say.
  void join(const std::vector<HoldShards>& steps, std::size_t count) {
    leader().join({&scene.worker(1)});
    for (std::size_t i = 0; i < count; ++i) {
      drop(steps[i]);
    }
  }
  // Fetches what the first `count` steps have dropped, the latest first, and parts.
  void part(const std::vector<HoldShards>& steps, std::size_t count) {
    for (std::size_t i = count; i-- > 0;) {
      fetch(steps[i]);
    }
    leader().part();
  }
  StepPlan plan_of(JoinTalk& talk) {
    StepPlan plan;
    plan.id = StepId{++last_step};
    add(plan, talk);
    return plan;
  }
  // Starts a step in which the device that draws hangs, and one after it. Returns that device.
  int hang(const std::shared_ptr<Hanging>& constraint, std::size_t homes, std::size_t home) {
    return hang_in(constraint, homes, home, {true, false});
  }
  // The same with the steps that are listed: true for the one in which it hangs.
  int hang_in(const std::shared_ptr<Hanging>& constraint, std::size_t homes, std::size_t home,
              std::initializer_list<bool> steps) {
    for (const bool first : steps) {
      JoinTalk talk = talk_of(0, join_spec());
      talk.blocks = {0, 1, 2};
      std::vector<StepPlan> plans(homes);
      plans[home] = plan_of(talk);
      if (first) {
        plans[home].samples.front().constraint = constraint;
        plans[home].samples.front().history_count = 9;
        plans[home].samples.front().prompt_count = 9;
        plans[home].history = talk.tokens;
      }
      leader().start(std::move(plans));
    }
    constraint->entered.acquire();
    while (scene.worker(0).holds_up() && scene.worker(1).holds_up()) {
      std::this_thread::yield();
    }
    return scene.worker(0).holds_up() ? 0 : 1;
  }
  // Keeps the thread that prepares a replica's morph steps, and tells the end of their commits.
  void occupy_background(int replica, const std::shared_ptr<Hanging>& busy) {
    scene.worker(replica).in_background([busy](const Pace&) {
      busy->entered.release();
      busy->goes_on.acquire();
      return false;
    });
    busy->entered.acquire();
  }
  // Computes a talk from its first token on one replica, and returns what it draws.
  std::vector<float> drawn_by(int replica) {
    JoinTalk talk = talk_of(1, join_spec());
    for (BlockId block = 0; block < 15; ++block) {
      talk.blocks.push_back(block);
    }
    while (talk.seen.size() < 2 * kTokens) {
      StepPlan plan = plan_of(talk);
      const StepId id = plan.id;
      scene.worker(replica).start(std::move(plan));
      StepResult result;
      do {  // a step that was given up may tell that it failed
        result = scene.ears[static_cast<std::size_t>(replica)]->next_step();
      } while (result.id != id);
      take(result, {&talk});
    }
    return talk.seen;
  }

  JoinScene scene;
  std::vector<BlockId> live = {0, 1, 2};  // of each home, for commits
  std::uint64_t last_id = 0;
  std::uint64_t last_step = 0;
};

// A device hangs in a step while some copies are dropped and the next one is about to be, so that
// the other device waits for it in the step, or in the exchange after it.
TEST(DeviceFailure, TheOtherDeviceFetchesWhatItDropped) {
  const std::vector<float> right = FailingScene().drawn_by(0);
  for (const bool by_layers : {false, true}) {
    const std::vector<HoldShards> steps = drops(by_layers);
    for (std::size_t moment = 0; moment < steps.size(); ++moment) {
      SCOPED_TRACE(moment);
      const auto constraint = std::make_shared<Hanging>();
      FailingScene failing;
      failing.join(steps, moment);
      const int victim = failing.hang(constraint, 2, moment % 2);
      failing.commit(steps[moment]);
      failing.scene.worker(victim).give_up();
      failing.scene.ears[0]->done(failing.last_id);
      failing.part(steps, moment + 1);
      EXPECT_EQ(failing.drawn_by(1 - victim), right);
      constraint->goes_on.release();
    }
  }
}

// The device hangs while it draws, when all layers are attended. The KV of one begins to move, and
// then the device is given up: its background thread, if it is not busy, may be in a chunk.
TEST(DeviceFailure, ADeviceFailsOnceKvHasBegunToMove) {
  const std::vector<float> right = FailingScene().drawn_by(0);
  for (const bool by_layers : {false, true}) {
    const std::vector<HoldShards> steps = drops(by_layers);
    for (const bool occupied : {false, true}) {
      SCOPED_TRACE(occupied);
      const auto constraint = std::make_shared<Hanging>();
      const auto busy = std::make_shared<Hanging>();
      FailingScene failing;
      const LetGo at_end{{constraint, busy}};
      failing.live.resize(kJoinBlocks);
      std::iota(failing.live.begin(), failing.live.end(), 0);
      failing.join(steps, steps.size() - 1);
      const int victim = failing.hang_in(constraint, 2, 0, {true});
      failing.prepare(steps.back());
      if (occupied && (!by_layers || victim == 0)) {  // by layers, device 1 alone moves KV
        failing.occupy_background(victim, busy);
      }
      failing.commit_prepared();
      for (int i = 0; i < 120'000 && failing.leader().kv_bytes_moved_early() == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_GT(failing.leader().kv_bytes_moved_early(), 0);
      failing.scene.worker(victim).give_up();
      failing.scene.ears[0]->done(failing.last_id);
      failing.part(steps, steps.size());
      EXPECT_EQ(failing.drawn_by(1 - victim), right);
    }
  }
}

TEST(DeviceFailure, TheDevicesOfOneReplicaPart) {
  const std::vector<float> right = FailingScene().drawn_by(0);
  for (const bool by_layers : {false, true}) {
    const std::vector<HoldShards> steps = drops(by_layers);
    const auto constraint = std::make_shared<Hanging>();
    FailingScene failing;
    failing.join(steps, steps.size());
    failing.leader().unify();
    const int victim = failing.hang(constraint, 1, 0);
    failing.scene.worker(victim).give_up();
    failing.leader().divide();
    failing.part(steps, steps.size());
    EXPECT_EQ(failing.drawn_by(1 - victim), right);
    constraint->goes_on.release();
  }
}

// The device hangs before it comes to the change after which its blocks have other numbers. Once it
// is given up, a copy is called off.
TEST(DeviceFailureDeathTest, NoKvIsCopiedWhoseDeviceHasNotComeToAChangeOfIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<HoldShards> steps = drops(false);
  for (const bool unifies : {true, false}) {
    const auto constraint = std::make_shared<Hanging>();
    FailingScene failing;
    const LetGo at_end{{constraint}};
    failing.join(steps, unifies ? steps.size() : 0);
    const int victim = failing.hang(constraint, 2, 0);
    if (unifies) {
      failing.leader().unify();
    } else {
      failing.leader().part();
    }
    CpuWorker& source = failing.scene.worker(unifies ? 0 : victim);
    EXPECT_DEATH(source.copy_blocks(source, {}, [] {}), "has its place");
    failing.scene.worker(victim).give_up();
    source.copy_blocks(source, {}, [] { ADD_FAILURE() << "a copy without its source"; });
  }
}

// The swap of a layer that the failed device alone holds: it fails before, while it prepares the
// swap, when it is ready, and when it is to commit it.
TEST(DeviceFailure, AStepThatConcernsTheFailedDeviceAloneSucceeds) {
  const std::vector<float> unswapped = FailingScene().drawn_by(0);
  const std::vector<HoldShards> steps = drops(true);
  for (int moment = 0; moment < 4; ++moment) {
    SCOPED_TRACE(moment);
    const auto constraint = std::make_shared<Hanging>();
    const auto busy = std::make_shared<Hanging>();
    FailingScene failing;
    const LetGo at_end{{constraint, busy}};
    failing.join(steps, steps.size());
    failing.leader().unify();
    const int victim = failing.hang(constraint, 1, 0);
    const SwapComponent swap{victim, Component::kMlp, Precision::kW8};
    const MorphId id{++failing.last_id};
    if (moment == 1) {
      failing.occupy_background(victim, busy);
    }
    if (moment > 0) {
      failing.leader().prepare(id, swap);
    }
    if (moment > 1) {
      ASSERT_FALSE(failing.scene.ears[0]->ready(id.value).failure);
    }
    if (moment == 3) {
      failing.leader().commit(id);
    }
    failing.scene.worker(victim).give_up();
    if (moment == 0) {
      failing.leader().prepare(id, swap);
    }
    ASSERT_TRUE(failing.scene.ears[0]->heard_of(id.value));
    const MorphReady ready = failing.scene.ears[0]->ready(id.value);
    ASSERT_FALSE(ready.failure) << ready.failure->message;
    if (moment < 3) {
      failing.leader().commit(id);
    }
    failing.scene.ears[0]->done(id.value);
    failing.leader().divide();
    failing.part(steps, steps.size());
    FailingScene alone;
    alone.leader().prepare(MorphId{1}, swap);
    ASSERT_FALSE(alone.scene.ears[0]->ready(1).failure);
    alone.leader().commit(MorphId{1});
    const std::vector<float> right = alone.drawn_by(0);
    EXPECT_NE(right, unswapped);
    EXPECT_EQ(failing.drawn_by(1 - victim), right);
  }
}

// The second of two devices fails while it fetches what it dropped, or when it has committed that.
TEST(DeviceFailure, AGroupWhoseDevicesHaveAllFailedParts) {
  const std::vector<HoldShards> steps = drops(false);
  for (const bool commits : {false, true}) {
    const auto constraint = std::make_shared<Hanging>();
    const auto busy = std::make_shared<Hanging>();
    FailingScene failing;
    const LetGo at_end{{constraint, busy}};
    failing.join(steps, steps.size());
    const int victim = failing.hang(constraint, 2, 0);
    failing.scene.worker(victim).give_up();
    const ShardRun all{0, kJoinShards};
    const MorphId id{++failing.last_id};
    const HoldShards fetch{steps.back().layer, steps.back().component, {all, all}};
    if (!commits) {
      failing.occupy_background(1 - victim, busy);
    }
    failing.leader().prepare(id, fetch);
    if (commits) {
      ASSERT_FALSE(failing.scene.ears[0]->ready(id.value).failure);
      failing.occupy_background(1 - victim, busy);  // it reports the end of the commit
      failing.leader().keep({{}, {}});
      failing.leader().commit(id);
    }
    failing.scene.worker(1 - victim).give_up();
    ASSERT_TRUE(failing.scene.ears[0]->heard_of(id.value));
    ASSERT_FALSE(failing.scene.ears[0]->ready(id.value).failure);
    if (!commits) {
      failing.leader().commit(id);
    }
    failing.scene.ears[0]->done(id.value);
    failing.part(steps, steps.size() - 1);
  }
}

// A device hangs while it prepares, and no step runs. Its number of pieces stays as it is, where a
// device that works on comes to an end.
TEST(DeviceFailure, ADeviceThatHangsWhileItPreparesCountsNoPieces) {
  const std::vector<float> right = FailingScene().drawn_by(0);
  const std::vector<HoldShards> steps = drops(false);
  const int victim = 1;
  const auto busy = std::make_shared<Hanging>();
  FailingScene failing;
  const LetGo at_end{{busy}};
  failing.join(steps, steps.size());
  EXPECT_FALSE(failing.scene.worker(victim).pieces_prepared());
  failing.occupy_background(victim, busy);
  EXPECT_FALSE(failing.scene.worker(victim).pieces_prepared()) << "it prepares no morph step";
  const ShardRun all{0, kJoinShards};
  const MorphId id{++failing.last_id};
  failing.leader().prepare(id,
                           {HoldShards{steps.back().layer, steps.back().component, {all, all}}});
  while (failing.scene.worker(1 - victim).pieces_prepared()) {
    std::this_thread::yield();
  }
  const auto pieces = failing.scene.worker(victim).pieces_prepared();
  ASSERT_TRUE(pieces);
  EXPECT_FALSE(failing.scene.ears[0]->heard_of(id.value));
  EXPECT_EQ(failing.scene.worker(victim).pieces_prepared(), pieces);
  failing.scene.worker(victim).give_up();
  ASSERT_FALSE(failing.scene.ears[0]->ready(id.value).failure);
  failing.leader().keep({{}, {}});
  failing.leader().commit(id);
  failing.scene.ears[0]->done(id.value);
  failing.part(steps, steps.size() - 1);
  EXPECT_EQ(failing.drawn_by(1 - victim), right);
  failing.scene.worker(0).close();
  failing.scene.worker(1).close();
  EXPECT_FALSE(failing.scene.worker(victim).stop());
}

// Both threads of a device hang when its replica is stopped; they go on later.
TEST(DeviceFailure, AWorkerIsNotStoppedWhileItsDeviceHangs) {
  const std::vector<HoldShards> steps = drops(true);
  FailingScene failing;
  const auto constraint = std::make_shared<Hanging>();
  const auto busy = std::make_shared<Hanging>();
  failing.leader().join({&failing.scene.worker(1)});
  for (const HoldShards& step : steps) {
    failing.drop(step);
  }
  const int victim = failing.hang(constraint, 2, 0);
  failing.occupy_background(victim, busy);
  const ShardRun all{0, kJoinShards};
  const MorphId id{++failing.last_id};
  failing.leader().prepare(id, HoldShards{0, Component::kMlp, {all, all}});
  failing.scene.worker(victim).give_up();
  ASSERT_FALSE(failing.scene.ears[0]->ready(id.value).failure);
  failing.scene.worker(0).close();
  failing.scene.worker(1).close();
  EXPECT_FALSE(failing.scene.worker(victim).stop());
  EXPECT_TRUE(failing.scene.worker(1 - victim).stop());
  busy->goes_on.release();
  constraint->goes_on.release();
  while (!failing.scene.worker(victim).stop()) {
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace protean
