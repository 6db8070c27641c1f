#include "device/cpu/team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace protean::cpu {
namespace {

class Teams : public testing::TestWithParam<int> {};

TEST_P(Teams, CallEveryIndexOnce) {
  Team team(GetParam());
  EXPECT_EQ(team.threads(), GetParam());
  for (const std::int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(tasks));
    std::atomic<bool> thread_in_range{true};
    team.run(tasks, [&](std::int64_t i, int thread) {
      calls[static_cast<std::size_t>(i)].fetch_add(1);
      if (thread < 0 || thread >= team.threads()) {
        thread_in_range = false;
      }
    });
    EXPECT_TRUE(thread_in_range);
    EXPECT_TRUE(std::all_of(calls.begin(), calls.end(), [](const auto& n) { return n == 1; }));
  }
}

// A batch may read, without synchronisation, what the previous batch wrote.
TEST_P(Teams, SeeWritesOfThePreviousBatch) {
  Team team(GetParam());
  constexpr std::int64_t kCells = 37;
  std::vector<std::int64_t> cells(kCells, 0);
  std::vector<std::int64_t> next(kCells, 0);
  constexpr int kBatches = 3000;
  for (int batch = 0; batch < kBatches; ++batch) {
    team.run(kCells, [&](std::int64_t i, int) {
      next[static_cast<std::size_t>(i)] = cells[static_cast<std::size_t>((i + 1) % kCells)] + 1;
    });
    std::swap(cells, next);
  }
  EXPECT_EQ(cells, std::vector<std::int64_t>(kCells, kBatches));
}

// Batches of different sizes follow each other immediately, and each task is destroyed after its
// batch: a thread that is late for one batch must not take an index of the next.
TEST_P(Teams, KeepBatchesApart) {
  Team team(GetParam());
  std::atomic<std::int64_t> strays{0};
  for (int batch = 0; batch < 50000; ++batch) {
    const std::int64_t tasks = 2 + batch * 7 % 11;
    auto calls = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(tasks));
    team.run(tasks, [&, own = batch](std::int64_t i, int) {
      if (own != batch || i < 0 || i >= tasks) {
        strays.fetch_add(1);
      } else {
        calls[static_cast<std::size_t>(i)].fetch_add(1);
      }
    });
    for (std::int64_t i = 0; i < tasks; ++i) {
      ASSERT_EQ(calls[static_cast<std::size_t>(i)], 1) << "batch " << batch << " index " << i;
    }
  }
  EXPECT_EQ(strays, 0);
}

TEST_P(Teams, WakeUpAfterAPause) {
  Team team(GetParam());
  std::atomic<int> calls{0};
  for (int i = 0; i < 20; ++i) {
    team.run(5, [&](std::int64_t, int) { calls.fetch_add(1); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(calls, 100);
}

TEST_P(Teams, RunABatchInsideATask) {
  Team team(GetParam());
  std::vector<std::atomic<int>> calls(12 * 9);
  std::atomic<bool> same_thread{true};
  team.run(12, [&](std::int64_t outer, int thread) {
    team.run(9, [&](std::int64_t inner, int inner_thread) {
      calls[static_cast<std::size_t>(outer * 9 + inner)].fetch_add(1);
      if (inner_thread != thread) {
        same_thread = false;
      }
    });
  });
  EXPECT_TRUE(std::all_of(calls.begin(), calls.end(), [](const auto& n) { return n == 1; }));
  EXPECT_TRUE(same_thread);
}

// Threads in one batch have different numbers: kernels use them to index memory of each thread.
TEST_P(Teams, GiveThreadsDifferentNumbers) {
  Team team(GetParam());
  std::vector<std::set<std::thread::id>> ids(static_cast<std::size_t>(GetParam()));
  for (int batch = 0; batch < 50; ++batch) {
    team.run(40, [&](std::int64_t, int thread) {
      ids[static_cast<std::size_t>(thread)].insert(std::this_thread::get_id());
      std::this_thread::yield();
    });
  }
  for (const auto& seen : ids) {
    EXPECT_LE(seen.size(), 1U);
  }
}

TEST(Team, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) {
    const Team team(3);
  }
}

// While a slow task occupies one thread, the other threads finish the rest and then wait.
TEST_P(Teams, WaitForTheSlowestTask) {
  Team team(GetParam());
  for (int batch = 0; batch < 5; ++batch) {
    std::atomic<int> done{0};
    team.run(8, [&](std::int64_t i, int) {
      if (i == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      done.fetch_add(1);
    });
    EXPECT_EQ(done, 8);
  }
}

// Returns the CPUs that each thread of a team may run on while it works.
std::vector<std::vector<int>> cpus_of(Team& team) {
  std::vector<std::vector<int>> cpus(static_cast<std::size_t>(team.threads()));
  std::barrier all(team.threads());  // makes each thread take one task
  team.run(team.threads(), [&](std::int64_t, int thread) {
    cpus[static_cast<std::size_t>(thread)] = allowed_cpus();
    all.arrive_and_wait();
  });
  return cpus;
}

TEST(Team, PinnedThreadsEachHaveACpu) {
  const std::vector<int> cpus = allowed_cpus();
  const auto count = static_cast<int>(std::min<std::size_t>(cpus.size(), 4));
  const std::vector<int> some(cpus.rbegin(), cpus.rbegin() + count);
  Team team(count, {.cpus = some, .pinned = true});
  EXPECT_EQ(cpus_of(team)[0], cpus) << "the owner is not seated";
  {
    const Seat seat = team.take_seat();
    std::vector<std::vector<int>> expected;
    for (const int cpu : some) {
      expected.push_back({cpu});
    }
    EXPECT_EQ(cpus_of(team), expected);
  }
  EXPECT_EQ(allowed_cpus(), cpus);
}

TEST(Team, UnpinnedThreadsMayRunOnAllCpus) {
  const std::vector<int> cpus = allowed_cpus();
  const std::vector<int> last = {cpus.back()};
  for (const std::vector<int>& some : {cpus, last}) {
    for (const int threads : {1, 2, 3}) {
      Team team(threads, {.cpus = some});
      const Seat seat = team.take_seat();
      EXPECT_EQ(cpus_of(team), std::vector(static_cast<std::size_t>(threads), some));
    }
  }
}

TEST(TeamDeathTest, APinnedTeamHasAThreadForEachCpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Team(1, {.cpus = {0, 1}, .pinned = true}), "a thread for each CPU");
}

TEST(Team, WorksIfItsPlaceIsRefused) {
  Team team(2, {.cpus = {60000, 60001}, .nodes = {1000}, .pinned = true});
  const Seat seat = team.take_seat();
  EXPECT_EQ(cpus_of(team), std::vector(2, allowed_cpus()));
}

INSTANTIATE_TEST_SUITE_P(Threads, Teams, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace protean::cpu
