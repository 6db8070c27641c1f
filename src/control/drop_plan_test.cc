#include "control/drop_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace protean {
namespace {

constexpr std::int64_t kCopy = 1000;
constexpr int kEvenLayers = 420;  // divide among any group of up to seven

DropGroup group_of(std::vector<int> replicas, std::int64_t copy = kCopy) {
  return {std::move(replicas), copy, 3 * copy / 2};
}

std::vector<DropGroup> singles(int count) {
  std::vector<DropGroup> groups;
  for (int i = 0; i < count; ++i) {
    groups.push_back(group_of({i}));
  }
  return groups;
}

// Returns the KV for which a group of even stages has room.
std::int64_t room_of(const DropGroup& group, int layers) {
  const std::int64_t replicas = std::ssize(group.replicas);
  return group.memory_bytes * layers / ((layers + replicas - 1) / replicas) - group.layer_bytes;
}

// Makes the plan for groups whose KV fills their memory.
DropPlan full_plan(std::vector<DropGroup> groups, std::int64_t required, int layers) {
  for (DropGroup& group : groups) {
    group.kv_bytes = room_of(group, layers);
  }
  return plan_drop(groups, required, layers);
}

std::vector<std::vector<int>> replicas_of(const std::vector<DropGroup>& groups) {
  std::vector<std::vector<int>> replicas;
  for (const DropGroup& group : groups) {
    replicas.push_back(group.replicas);
  }
  return replicas;
}

std::vector<int> sizes_of(const DropPlan& plan) {
  std::vector<int> sizes;
  for (const DropGroup& group : plan.groups) {
    sizes.push_back(static_cast<int>(group.replicas.size()));
  }
  return sizes;
}

// The example of figure 6: of groups of 1, 2 and 3 replicas, those of 1 and 2 merge first.
TEST(DropPlan, MergesTheSmallestGroupsStepByStep) {
  const std::vector<DropGroup> groups = {group_of({0, 1, 2}), group_of({3}), group_of({4, 5})};
  const DropPlan one = full_plan(groups, 1, 48);
  ASSERT_EQ(one.merges.size(), 1U);
  EXPECT_EQ(one.merges[0].into.replicas, (std::vector{3, 4, 5}));
  EXPECT_EQ(replicas_of(one.groups), (std::vector<std::vector<int>>{{0, 1, 2}, {3, 4, 5}}));
  const DropPlan two = full_plan(groups, kCopy + 1, 48);
  ASSERT_EQ(two.merges.size(), 2U);
  EXPECT_EQ(two.merges[1].into.replicas, (std::vector{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(two.freed_bytes, 2 * kCopy);
  EXPECT_TRUE(full_plan(groups, 0, 48).merges.empty());
}

TEST(DropPlan, DropsNoMoreThanNeeded) {
  for (int needed = 0; needed <= 6; ++needed) {
    EXPECT_EQ(std::ssize(full_plan(singles(7), needed * kCopy, kEvenLayers).merges), needed)
        << "of 7 instances";
  }
}

// Only a pipeline of seven has a stage of each layer, and loses nothing to the longest one.
TEST(DropPlan, SevenInstancesOfSevenLayersDropSixCopiesIfSixAreNeeded) {
  const DropPlan all = full_plan(singles(7), 6 * kCopy, 7);
  EXPECT_EQ(sizes_of(all), std::vector{7});
  EXPECT_EQ(all.freed_bytes, 6 * kCopy);
  EXPECT_EQ(sizes_of(full_plan(singles(7), kCopy / 2, 7)), (std::vector{2, 1, 1, 1, 1, 1}));
  EXPECT_EQ(sizes_of(full_plan(singles(7), 3 * kCopy, 7)), (std::vector{4, 3}));
}

TEST(DropPlan, DropsWhatThereIsIfMoreIsNeeded) {
  EXPECT_EQ(full_plan(singles(7), 6 * kCopy + 1, kEvenLayers).freed_bytes, 6 * kCopy);
  EXPECT_EQ(sizes_of(full_plan(singles(7), 6 * kCopy, 6)), (std::vector{2, 2, 3}))
      << "each replica has a layer, and four have no more KV than two and two";
  EXPECT_EQ(full_plan(singles(7), 6 * kCopy, 1).groups.size(), 7U);
  EXPECT_TRUE(full_plan({}, 1, 6).groups.empty());
}

// Stages of 12 and 7 layers become such of 5, whose blocks are fewer than before.
TEST(DropPlan, GroupsThatWouldGainNothingStayAsTheyAre) {
  const auto group = [](int first, int size) {
    DropGroup group{.layer_bytes = 48'000, .memory_bytes = 72'000};
    group.replicas.resize(static_cast<std::size_t>(size));
    std::iota(group.replicas.begin(), group.replicas.end(), first);
    return group;
  };
  const std::vector pair = {group(0, 4), group(4, 7)};
  EXPECT_EQ(sizes_of(full_plan(pair, 1, 48)), (std::vector{4, 7}));
  const DropPlan three = full_plan(std::vector{group(0, 4), group(4, 7), group(11, 4)}, 1, 48);
  EXPECT_EQ(sizes_of(three), (std::vector{8, 7}));
  const DropPlan other = full_plan(std::vector{group(0, 4), group(4, 7), group(11, 9)}, 1, 48);
  EXPECT_EQ(sizes_of(other), (std::vector{4, 16})) << "the first stays, and blocks no other";
}

// Two stages of three layers hold one of four in vain.
TEST(DropPlan, EqualGroupsBecomeOneIfALongerPipelineGains) {
  std::vector<DropGroup> groups = singles(3);
  for (DropGroup& group : groups) {
    group.memory_bytes = 3 * kCopy;
  }
  const DropPlan plan = full_plan(groups, 1, 3);
  EXPECT_EQ(sizes_of(plan), std::vector{3});
  EXPECT_EQ(plan.freed_bytes, 2 * kCopy);
  groups.pop_back();
  EXPECT_EQ(sizes_of(full_plan(groups, 1, 3)), (std::vector{1, 1}));
}

// Replicas whose KV leaves memory free gain that too.
TEST(DropPlan, WhatAGroupGainsIsCountedFromTheKvThatThereIs) {
  std::vector<DropGroup> groups = singles(2);
  groups[0].kv_bytes = kCopy / 2;
  groups[1].kv_bytes = kCopy / 4;
  EXPECT_EQ(plan_drop(groups, 1, 2).freed_bytes, kCopy + kCopy / 4);
}

// Stages divide layers by memory, so what one has more is not lost.
TEST(DropPlan, StagesOfUnequalMemoryCountWithTheMeanOfIt) {
  std::vector<DropGroup> groups = singles(2);
  groups[1].memory_bytes = 5 * kCopy / 2;
  EXPECT_EQ(full_plan(groups, 1, 2).freed_bytes, kCopy);
}

// Returns the groups whose replicas are in `whole`.
std::vector<DropGroup> parts_of(const DropGroup& whole, const std::vector<DropGroup>& groups) {
  const std::set<int> members(whole.replicas.begin(), whole.replicas.end());
  std::vector<DropGroup> parts = groups;
  std::erase_if(parts, [&](const DropGroup& group) {
    return !std::ranges::all_of(group.replicas, [&](int one) { return members.contains(one); });
  });
  return parts;
}

TEST(DropPlan, KeepsTheLargestCopyInEachGroupAndEveryReplicaOnce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const int layers = 4 + static_cast<int>(random() % 20);
    std::vector<DropGroup> groups;
    int next = 0;
    for (auto i = random() % 20; i > 0; --i) {
      const std::int64_t copy = 500 + static_cast<std::int64_t>(random() % 1000);
      DropGroup group{.layer_bytes = copy, .memory_bytes = copy * 3 / 2};
      for (auto members = 1 + random() % 4; members > 0; --members) {
        group.replicas.push_back(next++);
      }
      groups.push_back(std::move(group));
    }
    const auto required = static_cast<std::int64_t>(random() % 15'000);
    const DropPlan plan = full_plan(groups, required, layers);
    std::set<int> seen;
    std::int64_t gained = 0;
    for (const DropGroup& group : groups) {
      gained -= room_of(group, layers);
    }
    for (const DropGroup& group : plan.groups) {
      gained += room_of(group, layers);
      EXPECT_LE(std::ssize(group.replicas), layers);
      const std::vector<DropGroup> parts = parts_of(group, groups);
      std::int64_t largest = 0;
      std::size_t members = 0;
      for (const DropGroup& part : parts) {
        largest = std::max(largest, part.layer_bytes);
        members += part.replicas.size();
      }
      EXPECT_EQ(group.layer_bytes, largest);
      EXPECT_EQ(group.replicas.size(), members) << "each given group stays whole";
      seen.insert(group.replicas.begin(), group.replicas.end());
    }
    EXPECT_EQ(std::ssize(seen), next);
    EXPECT_EQ(plan.freed_bytes, gained);
    EXPECT_TRUE(plan.freed_bytes > 0 || plan.groups.size() == groups.size());
    if (!plan.merges.empty()) {
      EXPECT_LT(plan.freed_bytes - plan.merges.back().freed_bytes, required)
          << "the last merge was not needed";
    }
  }
}

TEST(DropPlan, IsMadeForManyReplicas) {
  std::vector<DropGroup> groups = singles(10'000);
  EXPECT_EQ(full_plan(groups, 9'000 * kCopy, 1680).merges.size(), 9'000U);
  for (DropGroup& group : groups) {
    group.memory_bytes = 1'000 * kCopy;
  }
  EXPECT_EQ(full_plan(groups, 1, 81).freed_bytes, 0) << "a long search that finds nothing";
}

}  // namespace
}  // namespace protean
