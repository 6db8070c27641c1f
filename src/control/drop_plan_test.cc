#include "control/drop_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace protean {
namespace {

constexpr std::int64_t kCopy = 100;

DropGroup group_of(std::vector<int> replicas, std::int64_t copy = kCopy) {
  return {std::move(replicas), copy, 0};
}

std::vector<DropGroup> singles(int count) {
  std::vector<DropGroup> groups;
  for (int i = 0; i < count; ++i) {
    groups.push_back(group_of({i}));
  }
  return groups;
}

// Returns true if the two smallest groups may become one.
bool two_fit(const std::vector<DropGroup>& groups, int layers) {
  std::vector<std::ptrdiff_t> sizes;
  for (const DropGroup& group : groups) {
    sizes.push_back(std::ssize(group.replicas));
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes.size() > 1 && sizes[0] + sizes[1] <= layers;
}

// The example of figure 6: of groups of 1, 2 and 3 replicas, those of 1 and 2 merge first.
TEST(DropPlan, MergesTheSmallestGroupsStepByStep) {
  const std::vector<DropGroup> groups = {group_of({0, 1, 2}), group_of({3}), group_of({4, 5})};
  const DropPlan one = plan_drop(groups, 1, 32);
  ASSERT_EQ(one.merges.size(), 1U);
  EXPECT_EQ(one.merges[0].into.replicas, (std::vector{3, 4, 5}));
  EXPECT_EQ(one.groups, (std::vector{group_of({0, 1, 2}), group_of({3, 4, 5})}));
  const DropPlan two = plan_drop(groups, kCopy + 1, 32);
  ASSERT_EQ(two.merges.size(), 2U);
  EXPECT_EQ(two.merges[1].into.replicas, (std::vector{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(two.freed_bytes, 2 * kCopy);
  EXPECT_TRUE(plan_drop(groups, 0, 32).merges.empty());
}

TEST(DropPlan, DropsNoMoreThanNeeded) {
  for (int needed = 0; needed <= 6; ++needed) {
    EXPECT_EQ(std::ssize(plan_drop(singles(7), needed * kCopy, 7).merges), needed)
        << "of 7 instances of 7 layers";
  }
}

TEST(DropPlan, DropsWhatThereIsIfMoreIsNeeded) {
  EXPECT_EQ(plan_drop(singles(7), 6 * kCopy + 1, 7).freed_bytes, 6 * kCopy);
  EXPECT_EQ(plan_drop(singles(7), 6 * kCopy, 6).freed_bytes, 5 * kCopy)
      << "each replica has a layer";
  EXPECT_EQ(plan_drop(singles(7), 6 * kCopy, 1).groups, singles(7));
  EXPECT_TRUE(plan_drop({}, 1, 6).groups.empty());
}

TEST(DropPlan, TheFirstAndTheLastStageKeepTheEmbeddings) {
  std::vector<DropGroup> groups = singles(4);
  for (DropGroup& group : groups) {
    group.embedding_bytes = 10;
  }
  const DropPlan all = plan_drop(groups, 10 * kCopy, 32);
  ASSERT_EQ(all.merges.size(), 3U);
  EXPECT_EQ(all.merges[0].freed_bytes, kCopy) << "both of two stages";
  EXPECT_EQ(all.merges[1].freed_bytes, kCopy);
  EXPECT_EQ(all.merges[2].freed_bytes, kCopy + 2 * 10);
  EXPECT_EQ(plan_drop(std::span(groups).first(3), 10 * kCopy, 32).freed_bytes, 2 * kCopy + 10);
}

TEST(DropPlan, KeepsACopyInEachGroupAndEveryReplicaOnce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const int layers = 4 + static_cast<int>(random() % 20);
    std::vector<DropGroup> groups;
    std::map<int, std::int64_t> copies;
    int next = 0;
    for (auto i = random() % 20; i > 0; --i) {
      DropGroup group = group_of({}, 50 + static_cast<std::int64_t>(random() % 100));
      for (auto members = 1 + random() % 4; members > 0; --members) {
        group.replicas.push_back(next++);
      }
      groups.push_back(std::move(group));
    }
    const auto required = static_cast<std::int64_t>(random() % 1500);
    const DropPlan plan = plan_drop(groups, required, layers);
    std::set<int> seen;
    std::int64_t held = 0;
    for (const DropGroup& group : plan.groups) {
      EXPECT_LE(std::ssize(group.replicas), layers);
      EXPECT_GT(group.layer_bytes, 0);
      held += group.layer_bytes;
      seen.insert(group.replicas.begin(), group.replicas.end());
    }
    EXPECT_EQ(std::ssize(seen), next);
    const std::int64_t before =
        std::accumulate(groups.begin(), groups.end(), std::int64_t{0},
                        [](std::int64_t sum, const DropGroup& g) { return sum + g.layer_bytes; });
    EXPECT_EQ(before - held, plan.freed_bytes);
    if (plan.freed_bytes < required) {
      EXPECT_FALSE(two_fit(plan.groups, layers)) << "more could be dropped";
    }
    if (!plan.merges.empty()) {
      EXPECT_LT(plan.freed_bytes - plan.merges.back().freed_bytes, required)
          << "the last merge was not needed";
    }
  }
}

TEST(DropPlan, IsMadeForManyReplicas) {
  EXPECT_EQ(plan_drop(singles(10'000), 9'000 * kCopy, 80).merges.size(), 9'000U);
}

}  // namespace
}  // namespace protean
