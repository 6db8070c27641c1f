#include "replica/shared_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "replica/load_scene_for_test.h"

namespace protean {
namespace {

constexpr std::int64_t kPage = 4096;

// A model whose engine is played by the test.
struct PlayedModel {
  PlayedModel(const std::shared_ptr<SharedMemory>& all, std::int64_t own_pages,
              std::vector<std::vector<int>> cpus = {{0, 1}}, std::int64_t free_pages = 0)
      : memory(std::make_shared<ModelMemory>(
            all, std::move(cpus),
            ModelMemory::Pages{kPage, own_pages, 10, 0, free_pages * kPage})) {
    load();
  }
  void load() {
    lease = memory->load([this](WantQuota want) {
      wish = want;
      if (follows) {
        follow(20, 0);
      }
    });
    quota = lease->pages;
  }
  void need(std::int64_t pages, TimeNs now_ns) {
    lease->report({.quota_bytes = quota * kPage,
                   .needs_bytes = pages * kPage,
                   .wish = wish ? wish->number : 0},
                  now_ns);
  }
  // Takes the quota that it was told.
  void follow(std::int64_t needs, TimeNs now_ns) {
    quota = wish->pages;
    need(needs, now_ns);
  }

  bool follows = false;  // what it is told, at once, and needs 20 pages
  std::optional<WantQuota> wish;
  std::int64_t quota = 0;
  std::shared_ptr<ModelMemory> memory;
  std::unique_ptr<ModelMemory::Lease> lease;
};

// The lender lends 30 pages: each model has 100, and they need 20 and 130.
void lend(PlayedModel& lender, PlayedModel& borrower) {
  lender.need(20, 0);
  borrower.need(130, 0);
  lender.follow(20, 1);
  borrower.follow(130, 1);
}

struct SharedMemoryTest : ReplicasTest {
  ReplicaOptions trading(const std::string& kv) {
    kv_cache_memory = kv;
    ReplicaOptions options = groupable(1);
    options.morph->mode = MorphMode::kBalanced;
    const PageBudget& budget = options.sizing.budget;
    options.memory = std::make_shared<ModelMemory>(
        all, std::vector<std::vector<int>>{{}},
        ModelMemory::Pages{budget.page_bytes, budget.pages, budget.pages});
    return options;
  }
  static std::int64_t own_bytes(const ReplicaOptions& options) {
    return options.sizing.budget.pages * options.sizing.budget.page_bytes;
  }

  std::shared_ptr<SharedMemory> all = std::make_shared<SharedMemory>();
};

TEST_F(SharedMemoryTest, AModelGetsMoreOnlyOnceAnotherHasGivenItBack) {
  PlayedModel idle(all, 100);
  PlayedModel busy(all, 100);
  PlayedModel elsewhere(all, 100, {{2, 3}});
  elsewhere.need(500, 0);
  idle.need(20, 0);
  busy.need(130, 0);
  ASSERT_TRUE(idle.wish);
  EXPECT_EQ(idle.wish->pages, 70);
  EXPECT_EQ(busy.wish->pages, 100) << "no model has given anything yet";
  idle.follow(20, 1);
  ASSERT_TRUE(busy.wish);
  EXPECT_EQ(busy.wish->pages, 130);
  EXPECT_FALSE(elsewhere.wish) << "other devices, other memory";
}

TEST_F(SharedMemoryTest, AReportThatCrossesAGrowthGivesNothingBack) {
  PlayedModel idle(all, 100);
  PlayedModel busy(all, 100);
  idle.need(20, 0);
  busy.need(130, 0);
  idle.follow(20, 1);
  ASSERT_EQ(busy.wish->pages, 130);
  busy.lease->report({.quota_bytes = 100 * kPage, .needs_bytes = 130 * kPage, .wish = 0}, 2);
  idle.need(90, 3);
  EXPECT_EQ(idle.wish->pages, 70) << "30 pages are on their way to the other model";
  EXPECT_EQ(busy.wish->pages, 110) << "which has to return what this one lacks of its own";
  busy.follow(130, 4);
  EXPECT_EQ(idle.wish->pages, 90);
}

// A model whose engine comes to what it is told late, in any order, and takes time to shrink.
struct LateModel {
  LateModel(const std::shared_ptr<SharedMemory>& all, std::int64_t own)
      : memory(std::make_shared<ModelMemory>(all, std::vector<std::vector<int>>{{0}},
                                             ModelMemory::Pages{kPage, own, 10})),
        quota(own),
        wanted(own) {}

  void load() {
    lease = memory->load([this](WantQuota want) { told.push_back(want); });
  }
  void take(std::size_t index) {
    const WantQuota want = told[index];
    told.erase(told.begin() + static_cast<std::ptrdiff_t>(index));
    if (want.number > seen) {
      seen = want.number;
      wanted = want.pages;
      quota = std::max(quota, wanted);
    }
  }
  void shrink() { quota = std::min(quota, wanted); }
  void report(TimeNs now_ns) const {
    lease->report({.quota_bytes = quota * kPage, .needs_bytes = needs * kPage, .wish = seen},
                  now_ns);
  }

  std::vector<WantQuota> told;
  std::shared_ptr<ModelMemory> memory;
  std::unique_ptr<ModelMemory::Lease> lease;
  std::int64_t quota;
  std::int64_t wanted;
  std::int64_t needs = 0;
  std::uint64_t seen = 0;
};

TEST_F(SharedMemoryTest, QuotasNeverExceedTheMemoryInAnyOrderOfEvents) {
  std::mt19937_64 random(5);
  LateModel first(all, 100);
  LateModel second(all, 60);
  LateModel third(all, 40);
  const std::vector<LateModel*> models = {&first, &second, &third};
  for (LateModel* const model : models) {
    model->load();
  }
  TimeNs now_ns = 0;
  std::int64_t most = 0;
  const auto act = [&](bool calm) {
    LateModel& model = *models[random() % models.size()];
    now_ns += 20 * kNsPerMs;
    if (!model.told.empty() && random() % 2 == 0) {
      model.take(random() % model.told.size());
    } else if (random() % 3 == 0) {
      model.shrink();
    } else if (!calm && random() % 3 == 0) {
      model.needs = static_cast<std::int64_t>(random() % 150);
    }
    if (random() % 2 == 0) {
      model.report(now_ns);
    }
    most = std::max(most, first.quota);
    return first.quota + second.quota + third.quota;
  };
  for (int event = 0; event < 20'000; ++event) {
    ASSERT_LE(act(false), 200) << event;
    ASSERT_EQ(all->claimed_bytes(), 200 * kPage) << "what is on its way is claimed too";
  }
  EXPECT_GT(most, 100) << "the first model has borrowed";
  for (LateModel* const model : models) {
    model->needs = 200;
  }
  for (int event = 0; event < 2'000; ++event) {
    ASSERT_LE(act(true), 200) << event;
  }
  EXPECT_EQ(first.quota, 100) << "each has its own again";
  EXPECT_EQ(second.quota, 60);
  EXPECT_EQ(third.quota, 40);
}

TEST_F(SharedMemoryTest, AModelThatIsUnloadedGivesBackWhatWasNotItsOwnAndComesBackWithItsQuota) {
  PlayedModel lender(all, 100);
  PlayedModel borrower(all, 100);
  lend(lender, borrower);
  lender.lease.reset();
  borrower.need(200, 500 * kNsPerMs);
  EXPECT_EQ(borrower.wish->pages, 130) << "a model that sleeps keeps its memory";
  lender.load();
  EXPECT_EQ(lender.lease->pages, 70);
  EXPECT_EQ(lender.lease->own_pages, 100);
  EXPECT_EQ(lender.lease->most_pages, 200);
  borrower.lease.reset();
  EXPECT_EQ(lender.wish->pages, 100);
  borrower.load();
  EXPECT_EQ(borrower.lease->pages, 100);
}

TEST_F(SharedMemoryTest, AModelBorrowsFromAModelThatCameLater) {
  PlayedModel first(all, 100, {{0, 1}}, 150);
  EXPECT_EQ(first.lease->most_pages, 150) << "later models can have 50";
  PlayedModel later(all, 50, {{0, 1}}, 50);
  EXPECT_EQ(later.lease->most_pages, 150);
  later.need(10, 0);
  first.need(110, 0);
  EXPECT_EQ(later.wish->pages, 40);
  later.follow(10, 1);
  EXPECT_EQ(first.wish->pages, 110);
}

TEST_F(SharedMemoryTest, AModelBorrowsFromModelsThatFoundMoreMemoryOnceItIsLoadedAgain) {
  PlayedModel first(all, 100);
  PlayedModel later(all, 60);
  EXPECT_EQ(first.lease->most_pages, 100);
  first.lease.reset();
  first.load();
  EXPECT_EQ(first.lease->most_pages, 160);
}

// Each page may need a mapping of its own, and all models of a process share these.
TEST_F(SharedMemoryTest, ModelsThatComeLaterLeaveOthersFewerPagesToBorrow) {
  constexpr std::int64_t kFree = 1 << 20;
  PlayedModel first(all, 100, {{0, 1}}, kFree);
  const std::int64_t alone = first.lease->most_pages;
  EXPECT_LT(alone, kFree);
  PlayedModel later(all, 2 * alone, {{0, 1}}, kFree);
  EXPECT_EQ(later.lease->most_pages, 2 * alone) << "its own";
  later.need(10, 0);
  first.need(kFree, 0);
  later.follow(10, 1);
  EXPECT_EQ(first.wish->pages, alone / 2);
}

TEST_F(SharedMemoryTest, ModelsThatAreLoadedClaimTheMemoryThatTheyMayTake) {
  PlayedModel lender(all, 100);
  PlayedModel borrower(all, 100);
  const auto elsewhere = std::make_shared<ModelMemory>(
      all, std::vector<std::vector<int>>{{2}, {3}}, ModelMemory::Pages{kPage, 50, 10, 3 * kPage});
  const auto claimed = [&] { return all->claimed_bytes() / kPage; };
  EXPECT_EQ(claimed(), 200) << "one model is not loaded";
  const auto lease = elsewhere->load([](WantQuota) {});
  EXPECT_EQ(claimed(), 297) << "of two devices, which lack three pages";
  lend(lender, borrower);
  EXPECT_EQ(claimed(), 297);
  lender.lease.reset();
  EXPECT_EQ(claimed(), 197) << "a model that sleeps claims all that is its own but for this";
}

TEST_F(SharedMemoryTest, MemoryOfAModelThatIsRemovedIsGivenBackByOthers) {
  auto lender = std::make_unique<PlayedModel>(all, 100);
  PlayedModel borrower(all, 100);
  lend(*lender, borrower);
  lender.reset();
  EXPECT_EQ(borrower.wish->pages, 100);
  borrower.follow(130, 2);
  borrower.need(130, kNsPerS);
  EXPECT_EQ(borrower.wish->pages, 100) << "it is the system's";
}

TEST_F(SharedMemoryTest, AModelThatTakesTheMemoryOfAnotherBeginsWithoutWhatThatOneHasLent) {
  auto former = std::make_unique<PlayedModel>(all, 100);
  PlayedModel borrower(all, 100);
  lend(*former, borrower);
  const auto next = std::make_shared<ModelMemory>(all, std::vector<std::vector<int>>{{0, 1}},
                                                  ModelMemory::Pages{kPage, 100, 10});
  former.reset();
  const auto lease = next->load([](WantQuota) {});
  EXPECT_EQ(lease->pages, 70);
  EXPECT_EQ(lease->own_pages, 100);
  lease->report({.quota_bytes = 70 * kPage, .needs_bytes = 90 * kPage, .wish = 1}, 2);
  EXPECT_EQ(borrower.wish->pages, 110) << "it gets the rest back as its own";
}

TEST_F(SharedMemoryTest, AModelWhoseDevicesFailNeitherGivesNorAsks) {
  PlayedModel lender(all, 100);
  PlayedModel failing(all, 100);
  lender.need(20, 0);
  failing.need(130, 0);
  ASSERT_EQ(lender.wish->pages, 70);
  failing.lease->fail();
  lender.follow(20, 1);
  EXPECT_EQ(lender.wish->pages, 100) << "what was to be lent comes back";
  EXPECT_FALSE(lender.wish->own_is_lost);
  EXPECT_EQ(failing.wish->pages, 100);
}

TEST_F(SharedMemoryTest, ALenderIsToldThatTheDevicesOfItsBorrowerHaveFailed) {
  PlayedModel lender(all, 100);
  PlayedModel borrower(all, 100);
  lend(lender, borrower);
  ASSERT_FALSE(lender.wish->own_is_lost);
  borrower.lease->fail();
  EXPECT_TRUE(lender.wish->own_is_lost);
  EXPECT_EQ(lender.wish->pages, 70);
  borrower.lease.reset();
  EXPECT_FALSE(lender.wish->own_is_lost);
  EXPECT_EQ(lender.wish->pages, 100);
}

TEST_F(SharedMemoryTest, WhatThreadsThatNeverEndHaveBorrowedIsGivenToNoModel) {
  PlayedModel lender(all, 100);
  PlayedModel borrower(all, 100);
  lend(lender, borrower);
  borrower.lease->lose();
  borrower.lease.reset();
  EXPECT_EQ(lender.wish->pages, 70);
  EXPECT_TRUE(lender.wish->own_is_lost);
  borrower.load();
  EXPECT_EQ(borrower.lease->pages, 100);
  lender.need(100, 2);
  EXPECT_EQ(lender.wish->pages, 70);
  lender.need(20, 3);
  borrower.need(130, 3);
  lender.follow(20, 4);
  EXPECT_EQ(lender.quota + borrower.wish->pages, 170);
}

// As one whose devices failed while another took over from it.
TEST_F(SharedMemoryTest, AModelThatHasLeftGivesBackWhatItBorrowedOnceItIsUnloaded) {
  PlayedModel lender(all, 100);
  PlayedModel borrower(all, 100);
  lend(lender, borrower);
  borrower.lease->fail();
  borrower.memory->leave();
  lender.need(100, 2);
  EXPECT_EQ(lender.wish->pages, 70) << "its threads may still use them";
  borrower.lease.reset();
  lender.need(100, 3);
  EXPECT_EQ(lender.wish->pages, 100);
  EXPECT_EQ(all->claimed_bytes(), 100 * kPage);
}

TEST_F(SharedMemoryTest, WhatAModelWasToldBeforeItWasLoadedAgainIsKnownByItsNumber) {
  LateModel model(all, 100);
  LateModel other(all, 100);
  model.load();
  ASSERT_FALSE(model.told.empty());
  const std::uint64_t last = model.told.back().number;
  model.told.clear();
  model.lease.reset();
  model.load();
  EXPECT_EQ(model.lease->wishes_before, last);
  ASSERT_FALSE(model.told.empty());
  EXPECT_GT(model.told.front().number, last);
}

// The device hangs to the end of the process.
TEST_F(SharedMemoryTest, WhatAModelWhoseDeviceHangsHasBorrowedIsLost) {
  PlayedModel lender(all, 256, {{}});
  lender.follows = true;
  lender.need(20, 0);
  constraint = std::make_shared<HangingOnce>(true);
  ReplicaOptions options = trading("512KiB");
  options.device_timeout_ns = 2 * kNsPerS;
  {
    FleetLoad borrower(options, *this);
    borrower.run(20'000, 48, [&](const OutputBatch& batch) {
      if (batch.memory && batch.memory->quota_bytes > own_bytes(options)) {
        borrower.enough();
      }
    });
  }
  EXPECT_TRUE(lender.wish->own_is_lost);
  EXPECT_LT(lender.wish->pages, 256);
}

TEST_F(SharedMemoryTest, WhatSucceedsAModelBorrowsForItself) {
  PlayedModel lender(all, 256, {{}});
  lender.follows = true;
  lender.need(20, 0);
  const ReplicaOptions options = trading("512KiB");
  const ReplicaOptions next = trading("512KiB");
  FleetLoad borrower(options, *this);
  TimeNs succeeded_ns = 0;
  borrower.run(20'000, 48, [&](const OutputBatch& batch) {
    const bool borrows = batch.memory && batch.memory->quota_bytes > own_bytes(options);
    if (borrows && succeeded_ns == 0) {
      const Status how = borrower.succeed(next);
      EXPECT_TRUE(how.ok()) << how.error().message;
      options.memory->leave();
      succeeded_ns = steady_now_ns();
    } else if (borrows && batch.at_ns > succeeded_ns) {
      borrower.enough();
    }
  });
  EXPECT_GT(succeeded_ns, 0);
  EXPECT_LT(borrower.answers.size(), 20'000U);
  EXPECT_EQ(all->claimed_bytes(), 256 * kPage + own_bytes(next)) << "the former one has left";
}

// One model is idle and lends memory to another one under load; then it has a load itself.
TEST_F(SharedMemoryTest, TradesChangeNoToken) {
  constexpr std::uint64_t kMostRequests = 20'000;
  constexpr std::uint64_t kOutstanding = 48;
  ReplicaOptions lending = trading("1MiB");
  ReplicaOptions borrowing = trading("512KiB");
  FleetLoad lender(lending, *this);
  FleetLoad borrower(borrowing, *this);
  const auto backed = [&] { return lender.traded_bytes() + borrower.traded_bytes(); };
  EXPECT_EQ(backed(), all->claimed_bytes()) << "devices take all of their memory at the start";
  std::promise<void> borrowed;
  std::atomic<bool> enough = false;
  auto busy = std::async(std::launch::async, [&] {
    bool told = false;
    borrower.run(kMostRequests, kOutstanding, [&](const OutputBatch& batch) {
      if (batch.memory && batch.memory->quota_bytes > own_bytes(borrowing) && !told) {
        told = true;
        borrowed.set_value();
      }
      if (enough) {
        borrower.enough();
      }
    });
  });
  const bool lent =
      borrowed.get_future().wait_for(std::chrono::minutes(5)) == std::future_status::ready;
  EXPECT_TRUE(lent);
  std::int64_t lowest = own_bytes(lending);
  bool returned = false;
  lender.run(kMostRequests, kOutstanding, [&](const OutputBatch& batch) {
    if (batch.memory) {
      returned = returned || batch.memory->quota_bytes > lowest;
      lowest = std::min(lowest, batch.memory->quota_bytes);
    }
    if (!lent || returned) {
      lender.enough();
    }
  });
  enough = true;
  busy.get();
  EXPECT_TRUE(returned);
  EXPECT_LE(backed(), all->claimed_bytes()) << "what no page has taken is claimed";
  for (auto* const options : {&lending, &borrowing}) {
    options->memory = nullptr;
    FleetLoad& traded = options == &lending ? lender : borrower;
    FleetLoad alone(*options, *this);
    alone.run(traded.answers.size(), 16);
    expect_same(alone.answers, traded.answers);
  }
}

}  // namespace
}  // namespace protean
