// Tests groups of real devices that lose memory, stop answering or cannot map memory, at any point
// of a change (KunServe section 4.4).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/repetitions_for_test.h"
#include "replica/load_scene_for_test.h"
#include "worker/pool_files_for_test.h"

namespace protean {
namespace {

struct GroupFaults : ReplicasTest {
  GroupFaults() { make_layers_divisible(); }

  static constexpr std::uint64_t kMostRequests = 20'000;
  static constexpr std::uint64_t kOutstanding = 6;

  // Lets two replicas form a group and part again, forever, under a load. `at_point` is called at
  // each point of the changes with its number, until it returns true; the load ends once `over`
  // does.
  struct Story {
    GroupBy by = GroupBy::kShards;
    std::function<void(int)> at_point;
    std::function<bool(const GroupsStatus&)> over;
  };
  std::shared_ptr<const GroupsStatus> tell(FleetLoad& load, const Story& story) {
    std::shared_ptr<const GroupsStatus> status;
    int point = 0;
    const auto want = [&](bool together) {
      const std::vector<ReplicaId> both = {ReplicaId{0}, ReplicaId{1}};
      GroupWish wish{.groups = {both}, .by = story.by};
      if (!together) {
        wish.groups = {{both[0]}, {both[1]}};
      }
      load.inbox.push({steady_now_ns(), WantGroups{1, std::move(wish)}});
    };
    want(true);
    load.run(kMostRequests, kOutstanding, [&](const OutputBatch& batch) {
      for (const Output& output : batch.outputs) {
        if (const auto* answer = std::get_if<GroupsAnswered>(&output)) {
          const std::string why = answer->changes.ok() ? "" : answer->changes.error().message;
          EXPECT_TRUE(why.empty() || why.find("is out of service") != why.npos) << why;
        }
      }
      if (batch.groups == nullptr) {
        return;
      }
      status = batch.groups;
      expect_legal(*status);
      story.at_point(point++);
      if (story.over(*status)) {
        load.enough();
      } else if (status->running.empty() && status->failed.empty()) {
        want(status->groups.size() == 2);
      }
    });
    return status;
  }

  void expect_legal(const GroupsStatus& status) const {
    for (const GroupStatus& group : status.groups) {
      expect_whole(group.form);
    }
    for (const RunningRegroup& change : status.running) {
      expect_whole(change.joint_form);
    }
  }
  void expect_whole(const std::optional<Form>& form) const {
    for (int layer = 0; form && layer < spec.layers; ++layer) {
      for (const Component component :
           {Component::kAttention, Component::kMlp, Component::kEmbeddings}) {
        EXPECT_FALSE(copies_of(form->group, layer, component, form->shards).empty());
      }
    }
  }
  void expect_right(const FleetLoad& load) {
    if (right_.size() < load.answers.size()) {
      FleetLoad one(groupable(1), *this);
      one.run(2 * load.answers.size(), 16);
      right_ = one.answers;
    }
    for (const auto& [id, answer] : load.answers) {
      EXPECT_EQ(answer.reason, FinishReason::kLength) << "request " << id.value;
      EXPECT_EQ(answer.tokens, right_.at(id).tokens) << "request " << id.value;
      EXPECT_EQ(answer.logprobs, right_.at(id).logprobs) << "request " << id.value;
    }
  }

 private:
  std::map<RequestId, FleetAnswer> right_;
};

// Points are in, before and after both directions of a change: forms come to rest, steps end, each
// component is dropped or fetched, KV is exchanged, engines become one and two again.
constexpr int kPoints = 24;

// Every fifth point still has both ways to divide, both members, and each number of holds at once.
int stride() {
  return instrumented() ? 5 : 1;
}

TEST_F(GroupFaults, AMemberThatLosesItsMemoryAtAnyPointTakesNoRequestWithIt) {
  std::set<std::string> stages;
  for (int at = 0; at < kPoints; at += stride()) {
    SCOPED_TRACE(at);
    ReplicaOptions options = groupable(2);
    options.holds_at_once = 1 + at % 3;
    FleetLoad load(options, *this);
    const std::vector<int> files = pool_files();
    ASSERT_EQ(files.size(), 2U);
    bool lost = false;
    const auto status =
        tell(load, {.by = at % 2 == 0 ? GroupBy::kShards : GroupBy::kLayers,
                    .at_point =
                        [&](int point) {
                          if (point == at) {
                            lost = true;
                            lose_memory(files[static_cast<std::size_t>(at / 2 % 2)]);
                          }
                        },
                    .over =
                        [&](const GroupsStatus& now) {
                          if (!lost && !now.running.empty()) {
                            stages.insert(now.running.front().stage);
                          }
                          return !now.failed.empty() && now.running.empty();
                        }});
    expect_right(load);
    ASSERT_EQ(status->failed.size(), 1U);
    EXPECT_EQ(status->failed.front().why, "has lost memory: an access to its pages failed");
    EXPECT_EQ(status->failed.front().devices, std::vector{0});
    EXPECT_EQ(status->groups.size(), 2U);
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  EXPECT_GE(stages.size(), instrumented() ? 2U : 3U)
      << "joint steps, and waits for forms and for the end of steps";
}

// Returns the points at which a member stops answering, among the first twenty: as many as the
// environment says, else few, since the watchdog's time passes for each.
std::vector<int> points_to_hang_at() {
  constexpr int kFirstPoints = 20;
  const char* const asked = std::getenv("PROTEAN_HANGS");
  const int count = asked == nullptr ? 4 : std::clamp(std::atoi(asked), 1, kFirstPoints);
  std::vector<int> points;
  for (int i = 0; i < count; ++i) {
    points.push_back(i * kFirstPoints / count);
  }
  return points;
}

TEST_F(GroupFaults, AMemberThatStopsAnsweringInAChangeTakesNoRequestWithIt) {
  const auto hangs = std::make_shared<HangingOnce>(false);
  constraint = hangs;
  all_constrained = true;
  for (const int from : points_to_hang_at()) {
    SCOPED_TRACE(from);
    ReplicaOptions options = groupable(2);
    options.device_timeout_ns = 5 * kNsPerS;
    FleetLoad load(options, *this);
    int last = -1;
    bool told = false;
    const auto status = tell(load, {.by = from % 2 == 0 ? GroupBy::kShards : GroupBy::kLayers,
                                    .at_point = [&](int point) { last = point; },
                                    .over =
                                        [&](const GroupsStatus& now) {
                                          if (!told && last >= from && !now.running.empty()) {
                                            told = true;
                                            hangs->hang();
                                          }
                                          return !now.failed.empty() && now.running.empty();
                                        }});
    hangs->goes_on.release();
    expect_right(load);
    ASSERT_EQ(status->failed.size(), 1U);
    EXPECT_EQ(status->failed.front().why, "has not answered for 5 s");
    EXPECT_EQ(status->groups.size(), 2U);
    EXPECT_TRUE(hangs->entered.try_acquire());
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

TEST_F(GroupFaults, ADeviceThatCannotMapMemoryAtAnyPointTurnsTheChangeBack) {
  int failures = 0;
  for (int at = 0; at < kPoints; at += stride()) {
    SCOPED_TRACE(at);
    ReplicaOptions options = groupable(2);
    options.holds_at_once = 1 + at % 3;
    FleetLoad load(options, *this);
    const std::vector<int> files = pool_files();
    ASSERT_EQ(files.size(), 2U);
    std::optional<MapsFail> fault;
    int last = -1;
    const auto status = tell(
        load, {.by = at % 2 == 0 ? GroupBy::kLayers : GroupBy::kShards,
               .at_point =
                   [&](int point) {
                     last = point;
                     if (point == at) {
                       fault.emplace(files[static_cast<std::size_t>(at / 2 % 2)]);
                     }
                   },
               .over =
                   [&](const GroupsStatus& now) {
                     const bool changes = !now.running.empty();
                     const bool failed = changes && !now.running.front().record.failure.empty();
                     if (failed || now.failures_total > 0 || last >= at + 6) {
                       fault.reset();
                     }
                     return last >= at && !fault && !changes && now.groups.size() == 2;
                   }});
    failures += status->failures_total > 0 ? 1 : 0;
    expect_right(load);
    EXPECT_TRUE(status->failed.empty());
    for (const RegroupRecord& record : status->history) {
      EXPECT_TRUE(record.failure.empty() ||
                  record.failure.find("of mapped pages") != std::string::npos ||
                  record.failure.starts_with("turned back"))
          << record.failure;
    }
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  EXPECT_GE(failures, kPoints / stride() / 4);
}

}  // namespace
}  // namespace protean
