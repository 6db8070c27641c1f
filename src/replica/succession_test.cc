// Tests workers that take the place of others, with all requests and their KV.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "replica/load_scene_for_test.h"
#include "replica/replica.h"

namespace protean {
namespace {

struct SuccessionTest : ReplicasTest {
  // Has a load served as all of these say, one after the other.
  void run_through(FleetLoad& load, const std::vector<ReplicaOptions>& all) const {
    constexpr std::uint64_t kMostRequests = 2'000;
    constexpr int kBatchesBetween = 50;
    std::size_t next = 0;
    int batches = 0;
    load.run(kMostRequests, outstanding, [&](const OutputBatch& batch) {
      EXPECT_EQ(batch.replica, ReplicaId{0});
      if (++batches % kBatchesBetween != 0) {
        return;
      }
      if (next == all.size()) {
        load.enough();
        return;
      }
      const Status how = load.succeed(all[next++]);
      EXPECT_TRUE(how.ok()) << how.error().message;
    });
    EXPECT_EQ(next, all.size());
    EXPECT_EQ(load.observed.at(ReplicaId{0}).accepted_total, std::ssize(load.answers))
        << "counters go on";
  }

  std::uint64_t outstanding = 12;
};

TEST_F(SuccessionTest, RequestsGoOnInEveryDivisionOfTheSameShardsWithoutAnotherToken) {
  const auto divided = [&](int tensor_now, int pipeline) {
    return options_for({.tensor = tensor_now, .pipeline = pipeline, .most_tensor = 2});
  };
  FleetLoad load(divided(1, 1), *this);
  run_through(load, {divided(2, 1), divided(1, 2), divided(2, 2), divided(1, 1)});
  FleetLoad known(divided(1, 1), *this);
  known.run(load.answers.size(), 16);
  expect_same(load.answers, known.answers);
}

// The KV heads of a device are then in other numbers of shards. Sums are in another order, so
// tokens may be others.
TEST_F(SuccessionTest, RequestsGoOnWithAnotherNumberOfShards) {
  FleetLoad load(options_for({}), *this);
  run_through(load, {options_for({.tensor = 2}), options_for({.pipeline = 2}), options_for({})});
  for (const auto& [id, answer] : load.answers) {
    EXPECT_EQ(answer.reason, FinishReason::kLength);
    EXPECT_EQ(std::ssize(answer.tokens), request(id.value).max_tokens) << id.value;
  }
}

TEST_F(SuccessionTest, LessAndMoreKvChangesNoToken) {
  outstanding = 48;
  const auto with_kv = [&](const std::string& kv) {
    kv_cache_memory = kv;
    ReplicaOptions options = options_for({});
    options.model.max_num_seqs = static_cast<int>(outstanding);
    return options;
  };
  const ReplicaOptions small = with_kv("512KiB");  // of one sequence of the full length
  const ReplicaOptions large = with_kv("4MiB");
  FleetLoad load(large, *this);
  run_through(load, {small, large, small});
  EXPECT_GT(load.observed.at(ReplicaId{0}).preemptions_total, 0);
  EXPECT_EQ(load.observed.at(ReplicaId{0}).kv_blocks, small.sizing.form.kv.blocks);
  FleetLoad known(large, *this);
  known.run(load.answers.size(), 16);
  expect_same(load.answers, known.answers);
}

// On pages, with a policy and packing in the background.
TEST_F(SuccessionTest, AModelWhoseFormMayChangeShowsTheFormOfWhatSucceedsIt) {
  most_tensor = 2;
  tensor = 1;
  const ReplicaOptions alone = groupable(1);
  tensor = 2;
  const ReplicaOptions shared = groupable(1);
  FleetLoad load(alone, *this);
  std::shared_ptr<const FormStatus> last;
  bool has_succeeded = false;
  load.run(20'000, 8, [&](const OutputBatch& batch) {
    last = batch.form != nullptr ? batch.form : last;
    if (!has_succeeded) {
      has_succeeded = true;
      const Status how = load.succeed(shared);
      ASSERT_TRUE(how.ok()) << how.error().message;
    } else if (last != nullptr && last->form == shared.sizing.form) {
      load.enough();
    }
  });
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->form, shared.sizing.form);
  EXPECT_EQ(last->pages.all, shared.sizing.budget.pages);
  FleetLoad known(alone, *this);
  known.run(load.answers.size(), 16);
  expect_same(load.answers, known.answers);
}

// A worker holds the store that its weights are read from until its memory is freed.
TEST_F(SuccessionTest, TheFormersMemoryIsFreedAtLowPriority) {
  const ReplicaOptions first = groupable(1);
  ReplicaOptions second = groupable(1);
  std::optional<int> freed_at;
  second.variants = {second.variants.get(), [&, store = second.variants](VariantStore*) {
                       freed_at = getpriority(PRIO_PROCESS, 0);
                     }};
  FleetLoad load(first, *this);
  Status how = load.succeed(second);
  ASSERT_TRUE(how.ok()) << how.error().message;
  second.variants.reset();
  EXPECT_FALSE(freed_at.has_value()) << "it serves";
  how = load.succeed(first);
  ASSERT_TRUE(how.ok()) << how.error().message;
  ASSERT_TRUE(freed_at.has_value());
  EXPECT_EQ(*freed_at, std::min(19, getpriority(PRIO_PROCESS, 0) + 10));
}

TEST(EventGate, EventsWaitUntilItIsOpenAndCarryTheNumbersOfTheWorkers) {
  EventGate gate;
  gate.push({1, BlocksCopied{}, ReplicaId{1}});
  Inbox inbox(4);
  gate.open(inbox, 5);
  gate.push({2, BlocksCopied{}, ReplicaId{0}});
  gate.close();
  gate.push({3, BlocksCopied{}, ReplicaId{0}});
  const std::vector<Event> events = inbox.pop_all();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].at_ns, 1);
  EXPECT_EQ(events[0].replica, ReplicaId{6});
  EXPECT_EQ(events[1].replica, ReplicaId{5});
}

}  // namespace
}  // namespace protean
