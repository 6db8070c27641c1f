// Tests that devices take the pages for which plans count (cost/hold_pages.h).

#include "cost/hold_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "cost/pages.h"
#include "worker/join_scene_for_test.h"
#include "worker/pool_files_for_test.h"

namespace protean {
namespace {

// Returns a random way to hold a component that each home has whole: by all homes, divided by
// shards, or by one home.
HoldShards random_hold(const Form& form, std::mt19937& random) {
  const auto below = [&](std::size_t limit) { return static_cast<int>(random() % limit); };
  HoldShards hold{below(kJoinLayers), Component::kEmbeddings, {}};
  if (below(7) > 0) {
    hold.component = below(2) == 0 ? Component::kAttention : Component::kMlp;
  }
  const int homes = static_cast<int>(form.group.size());
  const int way = below(3);
  const int keeper = below(form.group.size());
  for (int home = 0; home < homes; ++home) {
    const int count = way == 0 ? kJoinShards : way == 1 ? kJoinShards / homes : 0;
    const ShardRun all{0, kJoinShards};
    hold.runs.push_back(way == 2 && home == keeper ? all
                                                   : ShardRun{way == 1 ? home * count : 0, count});
  }
  return hold;
}

bool changes(const Form& form, const HoldShards& hold) {
  bool differs = false;
  for (std::size_t device = 0; device < form.group.size(); ++device) {
    differs = differs || form.group[device].of(hold.layer, hold.component) != hold.runs[device];
  }
  return differs;
}

bool is_whole(const Form& form, const HoldShards& at) {
  return std::all_of(form.group.begin(), form.group.end(), [&](const Holding& holding) {
    return holding.of(at.layer, at.component).count == kJoinShards;
  });
}

// Returns random steps, each of a component of its own, between copies for all homes and one copy.
std::vector<MorphStep> random_steps(const Form& form, std::size_t most, std::mt19937& random) {
  std::vector<MorphStep> steps;
  for (int tries = 0; tries < 40 && steps.size() < most; ++tries) {
    const HoldShards hold = random_hold(form, random);
    const bool taken = std::any_of(steps.begin(), steps.end(), [&](const MorphStep& step) {
      const auto& other = std::get<HoldShards>(step);
      return other.component == hold.component &&
             (other.layer == hold.layer || hold.component == Component::kEmbeddings);
    });
    const bool to_whole = is_whole(after(form, hold), hold);
    if (!taken && changes(form, hold) && is_whole(form, hold) != to_whole) {
      steps.emplace_back(hold);
    }
  }
  return steps;
}

// Returns the pages that each device has once it has prepared the steps.
std::vector<std::int64_t> pages_with(const Form& form, std::span<const MorphStep> steps) {
  std::vector<std::int64_t> taken;
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    std::int64_t pages = pages_on(join_spec(), form, device, kJoinPageBytes);
    Form before = form;
    for (const MorphStep& step : steps) {
      pages +=
          pages_to_hold(join_spec(), before, std::get<HoldShards>(step), device, kJoinPageBytes);
      before = after(before, step);
    }
    taken.push_back(pages);
  }
  return taken;
}

std::vector<std::int64_t> mapped_pages(const JoinScene& fleet, const JoinScene::Group& group) {
  std::vector<std::int64_t> mapped;
  for (int device = 0; device < static_cast<int>(group.form.group.size()); ++device) {
    mapped.push_back(fleet.mapped_pages(device));
  }
  return mapped;
}

// Gives each component of the layers one copy: by shards, or the first layer on the first device
// and the others on the second one.
void drop_copies(JoinScene& fleet, JoinScene::Group& group, bool by_layers) {
  const ShardRun all{0, kJoinShards};
  const std::vector<ShardRun> halves = {{0, kJoinShards / 2}, {kJoinShards / 2, kJoinShards / 2}};
  for (const Component component : {Component::kMlp, Component::kAttention}) {
    for (int layer = 0; layer < kJoinLayers; ++layer) {
      const std::vector<ShardRun> kept =
          layer == 0 ? std::vector{all, ShardRun()} : std::vector{ShardRun(), all};
      const std::vector<MorphStep> drop = {HoldShards{layer, component, by_layers ? kept : halves}};
      fleet.prepare(group, drop);
      fleet.commit_prepared(group, drop);
    }
  }
}

TEST(HoldPages, DevicesTakeWhatPlansCount) {
  const ModelSpec spec = join_spec();
  int at_once = 0;
  int held_back = 0;
  for (unsigned seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    JoinCase which =
        seed % 2 == 0 ? JoinCase{"w8", Precision::kW8, KvPrecision::kInt8} : JoinCase{"bf16"};
    which.attention_kept = seed > 6 ? kJoinShards : 0;
    JoinScene fleet(which, seed % 3 == 0 ? 4 : 2, 0, seed % 2 == 0 ? 0 : 12);
    fleet.groups = {fleet.join(fleet.groups)};
    JoinScene::Group& group = fleet.groups.front();
    const PageBudget budget{kJoinPageBytes, fleet.pages()};
    for (int round = 0; round < 40; ++round) {
      const std::vector<MorphStep> steps = random_steps(group.form, 1 + random() % 8, random);
      const std::size_t count = preparable(spec, group.form, steps, budget);
      held_back += count < steps.size() ? 1 : 0;
      const auto next = std::span(steps).first(count);
      EXPECT_EQ(mapped_pages(fleet, group), pages_with(group.form, {}));
      const std::vector<std::int64_t> taken = pages_with(group.form, next);
      if (*std::max_element(taken.begin(), taken.end()) > budget.pages) {
        continue;  // plan_regroup() plans no such step
      }
      at_once += count > 1 ? 1 : 0;
      fleet.prepare(group, next);
      EXPECT_EQ(mapped_pages(fleet, group), taken) << "seed " << seed << " round " << round;
      fleet.commit_prepared(group, next);
      ASSERT_FALSE(testing::Test::HasFailure());
    }
  }
  EXPECT_GT(at_once, 20);
  EXPECT_GT(held_back, 5);
}

// A step is prepared while a device still has to divide its KV among homes: it knows of twice as
// many blocks until then, and has no page for them.
TEST(HoldPages, DevicesThatHaveNotDividedTheirKvYetTakeNoMore) {
  const ModelSpec spec = join_spec();
  const ShardRun all{0, kJoinShards};
  for (const bool by_layers : {false, true}) {
    JoinScene fleet({"bf16"}, 2, 0, 0);
    fleet.groups = {fleet.join(fleet.groups)};
    JoinScene::Group& group = fleet.groups.front();
    std::vector<MorphStep> back;
    for (const Component component : {Component::kMlp, Component::kAttention}) {
      for (int layer = 0; layer < kJoinLayers; ++layer) {
        const std::vector<ShardRun> kept =
            layer == 0 ? std::vector{all, ShardRun()} : std::vector{ShardRun(), all};
        const std::vector<ShardRun> halves = {{0, kJoinShards / 2},
                                              {kJoinShards / 2, kJoinShards / 2}};
        const std::vector<MorphStep> drop = {
            HoldShards{layer, component, by_layers ? kept : halves}};
        fleet.prepare(group, drop);
        fleet.commit_prepared(group, drop);
        back.insert(back.begin(), HoldShards{layer, component, {all, all}});
      }
    }
    fleet.unify(group);
    fleet.worker(0).move_blocks(std::vector<BlockMove>(20'000, {.from = 0, .to = 1}));
    fleet.divide(group, 2);
    const std::size_t count = preparable(spec, group.form, back, {kJoinPageBytes, fleet.pages()});
    EXPECT_GT(count, 1U);
    const auto next = std::span(std::as_const(back)).first(count);
    fleet.prepare(group, next);
    EXPECT_EQ(mapped_pages(fleet, group), pages_with(group.form, next));
    fleet.commit_prepared(group, next);
  }
}

// The group's KV cache gets all that is free as soon as it is one, while a device still has the KV
// of two homes, which a resize would double.
TEST(HoldPages, KvGrowsBeforeDevicesHaveUnifiedIt) {
  const ModelSpec spec = join_spec();
  JoinScene fleet({"bf16"}, 2, 0, 0);
  fleet.groups = {fleet.join(fleet.groups)};
  JoinScene::Group& group = fleet.groups.front();
  drop_copies(fleet, group, false);
  fleet.worker(0).move_blocks(std::vector<BlockMove>(20'000, {.from = 0, .to = 1}));
  fleet.unify(group);
  const std::int64_t most = kv_blocks_that_fit(spec, group.form, fleet.pages(), kJoinPageBytes);
  EXPECT_GT(most, group.form.kv.blocks);
  fleet.apply(group, MorphStep(ResizeKv{most}));
  EXPECT_EQ(mapped_pages(fleet, group), pages_with(group.form, {}));
}

// The longest stage has pages free only because each layer takes whole pages for whole blocks.
TEST(HoldPages, KvGrowsByThePagesOfDroppedWeightsLessAtMostOneForEachLayer) {
  const ModelSpec spec = join_spec();
  for (const bool by_layers : {false, true}) {
    JoinScene fleet({"bf16"}, 2, 0, 0);
    fleet.groups = {fleet.join(fleet.groups)};
    JoinScene::Group& group = fleet.groups.front();
    const Form before = group.form;
    drop_copies(fleet, group, by_layers);
    fleet.unify(group);
    fleet.apply(
        group,
        MorphStep(ResizeKv{kv_blocks_that_fit(spec, group.form, fleet.pages(), kJoinPageBytes)}));
    for (int device = by_layers ? 1 : 0; device < 2; ++device) {
      const std::int64_t kept = weight_pages_on(spec, group.form, device, kJoinPageBytes);
      const std::int64_t dropped = weight_pages_on(spec, before, device, kJoinPageBytes) - kept;
      const std::int64_t gained =
          fleet.mapped_pages(device) - kept - kv_pages_on(spec, before, device, kJoinPageBytes);
      const int layers = by_layers ? kJoinLayers - 1 : kJoinLayers;
      EXPECT_GT(dropped, layers);
      EXPECT_LE(gained, dropped);
      EXPECT_GE(gained, dropped - layers) << "on device " << device;
    }
  }
}

}  // namespace
}  // namespace protean
