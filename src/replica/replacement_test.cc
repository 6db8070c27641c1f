// Tests models whose devices fail and that are loaded again elsewhere, with all requests.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/repetitions_for_test.h"
#include "replica/load_scene_for_test.h"
#include "worker/pool_files_for_test.h"

namespace protean {
namespace {

struct ReplacementTest : ReplicasTest {
  // A model on pages, on so many devices. Shards are the same.
  ReplicaOptions on(int devices) {
    most_tensor = 2;
    tensor = devices;
    return groupable(1);
  }
  void expect_right(const FleetLoad& load) {
    FleetLoad known(on(1), *this);
    known.run(load.answers.size(), 16);
    expect_same(load.answers, known.answers);
  }
};

TEST_F(ReplacementTest, RequestsOfDevicesThatLoseMemoryGoOnWithoutAnotherToken) {
  constexpr std::uint64_t kMostRequests = 1'000;
  constexpr int kBatchesBetween = 60;
  const int most = instrumented() ? 2 : 4;
  FleetLoad load(on(1), *this);
  load.await_others();
  int losses = 0;
  int batches = 0;
  bool lost = false;
  load.run(kMostRequests, 24, [&](const OutputBatch& batch) {
    if (batch.groups != nullptr && !batch.groups->failed.empty()) {
      const ReplicaFailure& failure = batch.groups->failed.front();
      EXPECT_EQ(failure.why, "has lost memory: an access to its pages failed");
      EXPECT_FALSE(failure.devices.empty());
      load.replace(on(++losses % 2 + 1));
      batches = 0;
      lost = false;
      if (losses == most) {
        load.enough();
      }
    } else if (!lost && losses < most && ++batches == kBatchesBetween) {
      lose_memory(pool_files().front());
      lost = true;
    }
  });
  EXPECT_EQ(losses, most);
  expect_right(load);
}

TEST_F(ReplacementTest, DevicesThatFailWhileTheyTakeOverAreNamedAndTheFormerGoesOn) {
  if (instrumented()) {
    GTEST_SKIP() << "memory that devices may still read is left behind";
  }
  FleetLoad load(on(1), *this);
  std::optional<Succeeded> ended;
  load.run(200, 12, [&](const OutputBatch& batch) {
    if (ended || batch.observation.kv_blocks_used < 20) {
      return;
    }
    const std::vector<int> former = pool_files();
    ended = load.take_over(on(1), [&] {
      for (const int file : pool_files()) {
        if (std::find(former.begin(), former.end(), file) == former.end()) {
          lose_memory(file);
        }
      }
    });
    load.enough();
  });
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->how.ok());
  ASSERT_TRUE(ended->failed.has_value());
  EXPECT_EQ(ended->failed->devices, std::vector{0});
  expect_right(load);
}

}  // namespace
}  // namespace protean
