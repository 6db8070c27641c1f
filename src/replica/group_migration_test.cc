// Tests requests that move with their KV between groups of real devices while they decode.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <vector>

#include "replica/load_scene_for_test.h"

namespace protean {
namespace {

struct GroupMigration : ReplicasTest {
  GroupMigration() { make_layers_divisible(); }

  static constexpr std::uint64_t kMostRequests = 20'000;

  static GroupWish pair(int first, GroupBy by) {
    return {.groups = {{ReplicaId{first}, ReplicaId{first + 1}}}, .by = by};
  }

  ReplicaOptions options_of(int replicas) {
    ReplicaOptions options = groupable(replicas);
    options.router = RouterPolicy::kRoundRobin;
    options.migrate = MigratePolicy::kOff;
    return options;
  }

  // Returns how many requests have moved with their KV.
  static std::int64_t moved(const FleetLoad& load) {
    std::int64_t sum = 0;
    for (const auto& [replica, seen] : load.observed) {
      sum += seen.adopted_with_kv_total;
    }
    return sum;
  }

  // Lets replicas form groups while a load runs, then moves requests between random ones of those
  // that serve until so many have moved.
  void expect_moves(int replicas, const std::vector<GroupWish>& wishes, std::int64_t least) {
    FleetLoad load(options_of(replicas), *this);
    const auto left = static_cast<std::size_t>(replicas) - wishes.size();
    std::mt19937 random(1);
    std::shared_ptr<const GroupsStatus> status;
    bool asked = false;
    for (const GroupWish& wish : wishes) {
      load.inbox.push({steady_now_ns(), WantGroups{1, wish}});
    }
    load.run(kMostRequests, 10, [&](const OutputBatch& batch) {
      status = batch.groups ? batch.groups : status;
      for (const Output& output : batch.outputs) {
        if (const auto* answer = std::get_if<GroupsAnswered>(&output)) {
          ASSERT_TRUE(answer->changes.ok()) << answer->changes.error().message;
        } else if (const auto* migrating = std::get_if<MigrationAnswered>(&output)) {
          EXPECT_TRUE(migrating->requests.ok()) << migrating->requests.error().message;
          asked = false;
        }
      }
      if (moved(load) >= least) {
        load.enough();
      } else if (!asked && status && status->running.empty() && status->groups.size() == left) {
        const std::size_t from = random() % left;
        const std::size_t to = (from + 1 + random() % (left - 1)) % left;
        asked = true;
        load.inbox.push(
            {steady_now_ns(),
             WantMigration{1, status->groups[to].replicas.front(), 1 + static_cast<int>(from)},
             status->groups[from].replicas.front()});
      }
    });
    EXPECT_GE(moved(load), least);
    expect_right(load);
  }

  void expect_right(const FleetLoad& load) {
    FleetLoad one(options_of(1), *this);
    one.run(load.answers.size(), 16);
    expect_same(load.answers, one.answers);
  }
};

TEST_F(GroupMigration, RequestsMoveBetweenGroupsByShards) {
  expect_moves(4, {pair(0, GroupBy::kShards), pair(2, GroupBy::kShards)}, 30);
}

TEST_F(GroupMigration, RequestsMoveBetweenGroupsByLayers) {
  expect_moves(4, {pair(0, GroupBy::kLayers), pair(2, GroupBy::kLayers)}, 30);
}

TEST_F(GroupMigration, RequestsMoveBetweenReplicasAndGroupsOfBothKinds) {
  expect_moves(5, {pair(0, GroupBy::kShards), pair(2, GroupBy::kLayers)}, 30);
}

// Operators ask for groups, for replicas alone and for moves at random moments; what cannot be had
// is refused.
TEST_F(GroupMigration, RequestsMoveWhileGroupsFormAndPart) {
  constexpr std::int64_t kChanges = 8;
  constexpr std::int64_t kMoves = 20;
  FleetLoad load(options_of(4), *this);
  std::mt19937 random(3);
  const auto below = [&](unsigned limit) { return static_cast<int>(random() % limit); };
  std::shared_ptr<const GroupsStatus> status;
  std::set<ErrorCode> refusals;
  bool asked = false;
  bool wished = false;
  load.run(kMostRequests, 10, [&](const OutputBatch& batch) {
    status = batch.groups ? batch.groups : status;
    for (const Output& output : batch.outputs) {
      wished = wished && !std::holds_alternative<GroupsAnswered>(output);
      if (const auto* migrating = std::get_if<MigrationAnswered>(&output)) {
        asked = false;
        if (!migrating->requests.ok()) {
          refusals.insert(migrating->requests.error().code);
        }
      }
    }
    const std::int64_t changes = status ? status->together_total + status->apart_total : 0;
    if (moved(load) >= kMoves && changes >= kChanges && !refusals.empty()) {
      load.enough();
    } else if (!asked) {
      const int from = below(4);
      const int to = (from + 1 + below(3)) % 4;
      asked = true;
      load.inbox.push(
          {steady_now_ns(), WantMigration{1, ReplicaId{to}, 1 + below(3)}, ReplicaId{from}});
    }
    if (!wished && status && status->running.empty() && below(30) == 0) {
      wished = true;
      const int first = 2 * below(2);
      GroupWish wish = pair(first, below(2) == 0 ? GroupBy::kShards : GroupBy::kLayers);
      if (below(2) == 0) {
        wish.groups = {{ReplicaId{first}}, {ReplicaId{first + 1}}};
      }
      load.inbox.push({steady_now_ns(), WantGroups{1, std::move(wish)}});
    }
  });
  EXPECT_GE(moved(load), kMoves);
  EXPECT_EQ(refusals, std::set<ErrorCode>{ErrorCode::kUnavailable});
  ASSERT_NE(status, nullptr);
  for (const RegroupRecord& record : status->history) {
    EXPECT_TRUE(record.failure.empty() || record.failure.starts_with("turned back"))
        << record.failure;
  }
  expect_right(load);
}

}  // namespace
}  // namespace protean
