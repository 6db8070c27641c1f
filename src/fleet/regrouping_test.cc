// Tests replicas that become one group and part again while requests run (AMOEBA, KunServe).

#include "fleet/regrouping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "base/repetitions_for_test.h"
#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

TEST(Regrouping, TwoReplicasBecomeOneAndPartAgainWhileRequestsRun) {
  GroupScene scene(2);
  for (int topic = 0; topic < 4; ++topic) {
    scene.arrive(topic, 20, 40);
  }
  for (int i = 0; i < 6; ++i) {
    scene.work(i % 2);
  }
  const auto changes = scene.want({{0, 1}});
  ASSERT_TRUE(changes.ok()) << changes.error().message;
  ASSERT_EQ(changes->size(), 1U);
  EXPECT_TRUE(changes->front().together);
  EXPECT_FALSE(scene.sink.groups_at_answer->running.empty()) << "an operator may look at once";
  EXPECT_EQ(changes->front().morph.steps.size(), 1U + 2 * kGroupLayers);
  EXPECT_EQ(to_string(changes->front().morph.steps.front()), "embeddings in shards 0-1, 2-3");
  EXPECT_EQ(to_string(changes->front().morph.steps.back()), "layer 1 attention in shards 0-1, 2-3");
  const std::size_t before = scene.sink.seen.at(RequestId{1}).tokens.size();
  for (int i = 0; i < 200 && scene.devices.log != std::vector<std::string>{"unify"}; ++i) {
    scene.ready();
    scene.work(0);
    scene.work(1);
    if (!scene.changing()) {
      break;
    }
  }
  EXPECT_EQ(scene.groups(), "01");
  EXPECT_GT(scene.sink.observed.at(ReplicaId{0}).running, 0);
  EXPECT_EQ(scene.sink.observed.at(ReplicaId{1}).running, 0) << "the first one serves for it";
  EXPECT_GT(scene.sink.seen.at(RequestId{1}).tokens.size(), before) << "requests go on meanwhile";
  EXPECT_FALSE(scene.sink.seen.at(RequestId{1}).finished.has_value());
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  scene.expect_all_answered();
  ASSERT_EQ(scene.sink.groups->history.size(), 2U);
  const RegroupRecord& there = scene.sink.groups->history.front();
  const RegroupRecord& back = scene.sink.groups->history.back();
  EXPECT_GT(there.steps_meanwhile, 0);
  EXPECT_LT(there.steps_meanwhile, 10);
  EXPECT_GT(back.steps_meanwhile, 0);
  EXPECT_GT(there.kv_bytes, 0);
  EXPECT_EQ(there.weight_bytes, 0) << "what others hold is dropped";
  EXPECT_GT(back.kv_bytes, 0);
  EXPECT_EQ(back.weight_bytes, weight_bytes(group_spec(), scene.form))
      << "each fetches a half of all";
  EXPECT_EQ(scene.sink.groups->kv_bytes_total, there.kv_bytes + back.kv_bytes);
  EXPECT_EQ(scene.sink.groups->weight_bytes_total, back.weight_bytes);
  EXPECT_FALSE(back.together);
  EXPECT_EQ(back.failure, "");
  EXPECT_TRUE(back.asked_ns <= back.begun_ns && back.begun_ns <= back.settled_ns &&
              back.settled_ns <= back.done_ns);
}

TEST(Regrouping, AGroupServesWhatNoReplicaCanHold) {
  GroupScene scene(2);
  scene.arrive(1, 110, 10);  // 30 blocks, and a replica has 24
  EXPECT_TRUE(scene.sink.seen.at(RequestId{1}).refused.has_value());
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  scene.settle();
  EXPECT_GT(scene.fleet->observe(ReplicaId{0}).kv_blocks, 48) << "dropped weights became KV";
  scene.arrive(1, 110, 10);
  scene.arrive(2, 180, 10);
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  EXPECT_TRUE(scene.sink.seen.at(RequestId{2}).finished.has_value());
  EXPECT_TRUE(scene.sink.seen.at(RequestId{3}).finished.has_value());
  scene.expect_all_answered();
}

TEST(Regrouping, AGroupThatIsToPartTakesNoRequestThatWouldKeepIt) {
  GroupScene scene(2);
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  scene.settle();
  ASSERT_GT(scene.fleet->observe(ReplicaId{0}).kv_blocks, 56);
  scene.arrive(1, 205, 20);  // 56 blocks, and the replicas have 48
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.work(0);
  scene.arrive(2, 205, 20);
  EXPECT_TRUE(scene.sink.seen.at(RequestId{2}).refused.has_value());
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  scene.expect_all_answered();
}

TEST(Regrouping, TheFormOfAnIdleReplicaThatHasPartedIsTold) {
  GroupScene scene(2);
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  scene.settle();
  EXPECT_EQ(scene.sink.forms.at(ReplicaId{0}).form.group.size(), 2U);
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.settle();
  EXPECT_EQ(scene.sink.forms.at(ReplicaId{0}).form.group.size(), 1U);
  EXPECT_GT(scene.sink.forms.at(ReplicaId{0}).kv_resizes_total, 0) << "those of the group count";
}

TEST(Regrouping, GroupsByLayersServeToo) {
  GroupScene scene(2);
  for (int topic = 0; topic < 4; ++topic) {
    scene.arrive(topic, 20, 60);
  }
  scene.work(0);
  scene.work(1);
  const auto changes = scene.want({{0, 1}}, GroupBy::kLayers);
  ASSERT_TRUE(changes.ok()) << changes.error().message;
  EXPECT_EQ(to_string(changes->front().morph.steps.front()), "layer 0 mlp in shards 0-3, none");
  scene.settle();
  EXPECT_EQ(scene.groups(), "01");
  EXPECT_EQ(scene.sink.groups->groups.front().by, GroupBy::kLayers);
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kShards).ok());  // parts and groups anew
  scene.settle();
  EXPECT_EQ(scene.sink.groups->groups.front().by, GroupBy::kShards);
  EXPECT_EQ(scene.sink.groups->history.size(), 3U);
  scene.expect_all_answered();
}

int layers_held(const Holding& holding) {
  return static_cast<int>(std::ranges::count_if(
      holding.layers, [](const Holding::Layer& layer) { return !layer.empty(); }));
}

// No stage is fetched, and the group parts into what it was made of.
TEST(Regrouping, APipelineAndAReplicaBecomeOneOfEvenStages) {
  for (const bool replica_first : {false, true}) {
    GroupScene scene(3);
    const std::vector<std::vector<int>> pair = {replica_first ? std::vector<int>{1, 2}
                                                              : std::vector<int>{0, 1}};
    ASSERT_TRUE(scene.want(pair, GroupBy::kLayers).ok());
    scene.settle();
    for (int topic = 0; topic < 6; ++topic) {
      scene.arrive(topic, 20, 60);
    }
    for (const int replica : {0, 1, 2}) {
      scene.work(replica);
    }
    const auto changes = scene.want({{0, 1, 2}}, GroupBy::kLayers);
    ASSERT_TRUE(changes.ok()) << changes.error().message;
    ASSERT_EQ(changes->size(), 1U) << "the pipeline does not part first";
    EXPECT_TRUE(changes->front().together);
    scene.settle();
    ASSERT_EQ(scene.groups(), "012");
    const RegroupRecord& record = scene.sink.groups->history.back();
    EXPECT_EQ(record.weight_bytes, 0);
    EXPECT_GT(record.kv_bytes, 0);
    for (const Holding& holding : scene.sink.groups->groups.front().form->group) {
      EXPECT_EQ(layers_held(holding), kGroupLayers / 3);
    }
    for (int topic = 0; topic < 6; ++topic) {
      scene.arrive(topic, 20, 60);
    }
    scene.work(0);
    const auto back = scene.want({{0}, {1}, {2}});
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(back->size(), 2U);
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1 2");
    EXPECT_EQ(scene.sink.groups->failures_total, 0);
    scene.expect_all_answered();
  }
}

TEST(Regrouping, AFailedStepTurnsBackWithItsReason) {
  GroupScene scene(2);
  scene.arrive(1, 20, 30);
  scene.arrive(2, 20, 30);
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  for (int i = 0; i < 200 && scene.devices.preparing.empty(); ++i) {
    scene.work(i % 2);
  }
  for (int dropped = 0; dropped < 1 + kGroupLayers; ++dropped) {
    ASSERT_TRUE(scene.ready()) << "all that moves no KV is prepared at once";
  }
  for (int i = 0; i < 200 && scene.devices.preparing.empty(); ++i) {
    scene.work(i % 2);
  }
  scene.ready(0, Error{ErrorCode::kExhausted, "no page"});
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  ASSERT_EQ(scene.sink.groups->history.size(), 1U);
  EXPECT_EQ(scene.sink.groups->history[0].failure,
            "layer 0 attention in shards 0-1, 2-3 failed: no page");
  EXPECT_EQ(scene.sink.groups->failures_total, 1);
  const std::vector<std::string>& log = scene.devices.log;
  ASSERT_EQ(log.size(), 2 + 2 * (1 + kGroupLayers));
  EXPECT_EQ(log[0], "join");
  EXPECT_EQ(log[1], "embeddings in shards 0-1, 2-3");
  EXPECT_EQ(log[log.size() - 2], "embeddings in shards 0-3, 0-3");
  EXPECT_EQ(log.back(), "part");
  scene.expect_all_answered();
}

TEST(Regrouping, DifferentReplicasChangeAtTheSameTime) {
  for (const bool fails : {false, true}) {
    GroupScene scene(4);
    for (int topic = 0; topic < 8; ++topic) {
      scene.arrive(topic, 20, 30);
    }
    ASSERT_TRUE(scene.want({{0, 1}, {2, 3}}, GroupBy::kLayers).ok());
    ASSERT_EQ(scene.sink.groups->running.size(), 2U);
    while (scene.devices.preparing.empty()) {
      const bool more = scene.work(0) || scene.work(1);
      ASSERT_TRUE(more) << "the first pair joins";
    }
    if (fails) {
      ASSERT_TRUE(scene.ready(0, Error{ErrorCode::kExhausted, "no page"}));
    }
    scene.settle();
    EXPECT_EQ(scene.groups(), fails ? "0 1 23" : "01 23") << "a change ends alone";
    EXPECT_EQ(scene.sink.groups->failures_total, fails ? 1 : 0);
    ASSERT_TRUE(scene.want({{0}, {1}, {2}, {3}}).ok());
    EXPECT_EQ(scene.sink.groups->running.size(), fails ? 1U : 2U);
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1 2 3");
    scene.expect_all_answered();
  }
}

TEST(Regrouping, ACounterOrderTurnsAtAnyMoment) {
  for (int moment = 0; moment < 60; ++moment) {
    GroupScene scene(2);
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 40);
    }
    const bool from_group = moment % 2 == 1;
    if (from_group) {
      ASSERT_TRUE(scene.want({{0, 1}}).ok());
      for (int i = 0; i < 100 && scene.changing(); ++i) {
        scene.ready();
        scene.work(0);
        scene.work(1);
      }
    }
    ASSERT_TRUE((from_group ? scene.want({{0}, {1}}) : scene.want({{0, 1}})).ok());
    scene.go_on_to(moment);
    ASSERT_TRUE((from_group ? scene.want({{0, 1}}) : scene.want({{0}, {1}})).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), from_group ? "01" : "0 1") << moment;
    scene.expect_all_answered();
  }
}

TEST(Regrouping, BadWishesSayWhatToDo) {
  GroupScene scene(4);
  const auto error = [&](std::vector<std::vector<int>> groups) {
    const auto answer = scene.want(std::move(groups));
    return answer.ok() ? "granted" : answer.error().message;
  };
  const std::string begin = "these groups cannot be had: ";
  EXPECT_EQ(error({{0, 1, 2}}), begin + "a group by shards has 3 replicas: name 1, 2, 4 or 8");
  EXPECT_EQ(error({{0, 7}}), begin + "there is no replica 7: name 0 to 3");
  EXPECT_EQ(error({{0, 0}}), begin + "replica 0 is named twice");
  EXPECT_EQ(error({}), begin + "no replica is named");
  Fleet alone(Dispatch{RouterPolicy::kLeastLoaded},
              {{group_engine(scene.form, scene.budget, false), &scene.devices.executor(0)}},
              scene.sink);
  alone.handle({1, WantGroups{1, {.groups = {{ReplicaId{0}}}}}});
  EXPECT_EQ(scene.sink.answer->error().message,
            begin +
                "the model has one replica: serve it with --data-parallel-size 2, or more, to "
                "group them");
  Fleet pair(Dispatch{RouterPolicy::kLeastLoaded},
             {{group_engine(scene.form, scene.budget, false), &scene.devices.executor(0)},
              {group_engine(scene.form, scene.budget, false), &scene.devices.executor(1)}},
             scene.sink, nullptr, GroupConfig{.why_not = "they are too far apart"});
  pair.handle({1, WantGroups{2, {.groups = {{ReplicaId{0}, ReplicaId{1}}}}}});
  EXPECT_EQ(scene.sink.answer->error().message,
            begin +
                "they are too far apart: use --tensor-parallel-size or "
                "--pipeline-parallel-size to divide the model");
}

using Wish = std::vector<std::vector<int>>;

// Returns wishes for groups; the last one is for replicas alone.
std::vector<Wish> wishes_of(int replicas) {
  if (replicas == 2) {
    return {{{0, 1}}, {{0}, {1}}};
  }
  if (replicas == 3) {
    return {{{0, 1}, {2}}, {{0, 1, 2}}, {{0}, {1, 2}}, {{0, 1, 2}}, {{0}, {1}, {2}}};
  }
  return {{{0, 1}},       {{2, 3}},   {{0, 1}, {2, 3}}, {{0, 1, 2, 3}},
          {{0, 1, 2, 3}}, {{0}, {1}}, {{0, 2}, {1, 3}}, {{0}, {1}, {2}, {3}}};
}

// An arrival, a cancel, a wish, a device's work or a failure.
void let_something_happen(GroupScene& scene, int replicas, const std::function<int(int)>& below) {
  const auto any_of = [&](std::size_t count) {
    return static_cast<std::size_t>(below(static_cast<int>(count)));
  };
  const int dice = below(200);
  if (dice < 10) {
    scene.arrive(below(6), 1 + below(below(6) == 0 ? 120 : 40), 1 + below(30));
  } else if (dice < 11 && !scene.asked.empty()) {
    scene.send(Cancel{RequestId{1 + any_of(scene.asked.size())}});
  } else if (dice < 13) {
    const std::vector<Wish> wishes = wishes_of(replicas);
    const Wish& wish = wishes[any_of(wishes.size())];
    const bool by_layers = replicas == 3 || below(4) == 0;
    (void)scene.want(wish, by_layers ? GroupBy::kLayers : GroupBy::kShards);
  } else if (dice < 60) {
    const bool fails = below(40) == 0;
    if (!scene.devices.preparing.empty()) {
      scene.ready(any_of(scene.devices.preparing.size()),
                  fails ? std::optional(Error{ErrorCode::kExhausted, "no page"}) : std::nullopt);
    }
  } else if (dice < 64) {
    scene.tick();
  } else {
    scene.work(below(replicas));
  }
}

const std::vector kPairAndLast = {ReplicaId{0}, ReplicaId{2}};  // homes of three replicas

// Random arrivals, cancels, failures and wishes for groups of 2, 3 and 4, in random order: no token
// is lost, repeated or different, devices never hold more than their pages, and in the end all
// replicas are alone again. Three replicas divide layers only.
TEST(Regrouping, MergesAndSplitsAtRandomMomentsChangeNoToken) {
  int together = 0;
  int apart = 0;
  int turned = 0;
  int unequal = 0;
  std::int64_t moved = 0;
  std::int64_t preemptions = 0;
  std::int64_t hits = 0;
  for (int seed = 0; seed < repetitions(60); ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const int replicas = seed % 3 == 0 ? 2 : seed % 6 == 1 ? 3 : 4;
    GroupScene scene({.replicas = replicas,
                      .blocks = 16 + below(20),
                      .morphs = below(3) > 0,
                      .steps_at_once = 1 + below(3)});
    for (int event = 0; event < 4'000; ++event) {
      let_something_happen(scene, replicas, below);
      if (testing::Test::HasFailure()) {
        FAIL() << "seed " << seed << " event " << event;
      }
    }
    (void)scene.want(wishes_of(replicas).back());
    scene.settle();
    scene.expect_all_answered();
    EXPECT_EQ(scene.groups(), std::string("0 1 2 3").substr(0, 2 * scene.fleet->size() - 1));
    EXPECT_FALSE(scene.devices.grouped());
    for (const RegroupRecord& record : scene.sink.groups->history) {
      ++(record.together ? together : apart);
      turned += record.failure.empty() ? 0 : 1;
      moved += record.blocks_moved;
      unequal += record.together && replicas == 3 && record.replicas == kPairAndLast ? 1 : 0;
    }
    for (std::int32_t replica = 0; replica < replicas; ++replica) {
      preemptions += scene.fleet->observe(ReplicaId{replica}).preemptions_total;
      hits += scene.fleet->observe(ReplicaId{replica}).prefix_hit_tokens_total;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(together, repetitions(200));
  EXPECT_GT(apart, repetitions(200));
  EXPECT_GT(turned, repetitions(50));
  EXPECT_GT(unequal, repetitions(4));
  EXPECT_GT(moved, repetitions(500));
  EXPECT_GT(preemptions, repetitions(100));
  EXPECT_GT(hits, repetitions(1'000));
}

TEST(Regrouping, AnOperatorsFormIsOneInTheGroupAndAfterIt) {
  GroupScene scene(2);
  for (const int replica : {0, 1}) {
    scene.send(WantForm{1, {.layers = scene.form.layer_precision}}, ReplicaId{replica});
  }
  scene.settle();
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  scene.settle();
  EXPECT_TRUE(scene.sink.forms.at(ReplicaId{0}).pinned);
  scene.send(WantForm{1, {.kv_blocks = 2 * scene.form.kv.blocks - 1}}, ReplicaId{0});
  ASSERT_FALSE(scene.sink.form_answer->ok());
  EXPECT_EQ(scene.sink.form_answer->error().message,
            "47 KV blocks: a group keeps at least the 48 blocks of its replicas: ask for more, or "
            "split it first");
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.settle();
  EXPECT_TRUE(scene.sink.forms.at(ReplicaId{0}).pinned);
  EXPECT_TRUE(scene.sink.forms.at(ReplicaId{1}).pinned);
  EXPECT_EQ(scene.groups(), "0 1");
}

FormWish lower(const GroupScene& scene) {
  FormWish wish{.layers = scene.form.layer_precision};
  wish.layers.front().mlp = Precision::kBf16;
  return wish;
}

// Lets the group's form begin to go back to the replicas'.
void begin_to_part(GroupScene& scene) {
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  ASSERT_TRUE(scene.changing());
  EXPECT_EQ(scene.stage(), "waits for room in the replicas");
}

TEST(Regrouping, AGroupThatPartsIsNotPinned) {
  GroupScene scene(2);
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(scene.want({{0, 1}}).ok());
    scene.settle();
    EXPECT_FALSE(scene.sink.forms.at(ReplicaId{0}).pinned);
    begin_to_part(scene);
    EXPECT_FALSE(scene.sink.forms.at(ReplicaId{0}).pinned);
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1");
    EXPECT_FALSE(scene.sink.forms.at(ReplicaId{0}).pinned);
  }
}

TEST(Regrouping, AnOperatorsFormOfAGroupIsThatOfItsReplicas) {
  GroupScene scene(2);
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  scene.settle();
  scene.send(WantForm{1, lower(scene)}, ReplicaId{0});
  ASSERT_TRUE(scene.sink.form_answer->ok());
  scene.settle();
  begin_to_part(scene);
  scene.work(0);
  ASSERT_TRUE(scene.want({{0, 1}}).ok());  // turns
  scene.settle();
  EXPECT_EQ(scene.groups(), "01");
  EXPECT_TRUE(scene.sink.forms.at(ReplicaId{0}).pinned);
  EXPECT_EQ(scene.sink.forms.at(ReplicaId{0}).form.layer_precision, lower(scene).layers);
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  for (const int replica : {0, 1}) {
    EXPECT_TRUE(scene.sink.forms.at(ReplicaId{replica}).pinned);
    EXPECT_EQ(scene.sink.forms.at(ReplicaId{replica}).form.layer_precision, lower(scene).layers);
  }
}

TEST(Regrouping, AFormThatAnOperatorReleasedInAGroupStaysReleased) {
  GroupScene scene(2);
  scene.send(WantForm{1, {.layers = scene.form.layer_precision}}, ReplicaId{1});
  scene.settle();
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  scene.settle();
  EXPECT_TRUE(scene.sink.forms.at(ReplicaId{0}).pinned) << "the second replica's";
  scene.send(WantForm{1, {.release = true}}, ReplicaId{0});
  ASSERT_TRUE(scene.sink.form_answer->ok());
  scene.settle();
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1");
  EXPECT_FALSE(scene.sink.forms.at(ReplicaId{0}).pinned);
  EXPECT_FALSE(scene.sink.forms.at(ReplicaId{1}).pinned);
}

}  // namespace
}  // namespace protean
