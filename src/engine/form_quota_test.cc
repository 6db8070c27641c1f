#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/morph_scene_for_test.h"

// Engines of models that share devices: KV gives up pages for other models and takes theirs.

namespace protean {
namespace {

constexpr std::int64_t kBlocks = 40;

// A model that never lowers precision. `borrowed` of the pages that it begins with are not its own.
MorphConfig trading(std::int64_t borrowed) {
  MorphConfig config = morph_for_test(kBlocks, MorphMode::kBalanced);
  config.bounds.floor.most_lowered_layers = 0;
  config.own_pages = config.bounds.budget.pages - borrowed;
  return config;
}

struct Trading : EngineMorph {
  explicit Trading(std::int64_t borrowed = 0) : EngineMorph(trading(borrowed)) { want(0); }

  // Changes the quota by so many pages, of what the model began with.
  void want(std::int64_t more) {
    send(WantQuota{.pages = morph.bounds.budget.pages + more, .number = ++wishes});
  }
  // Ends what is under way, and lets so many tenths of a second pass.
  void pass(int tenths = 1) {
    for (int i = 0; i < tenths; ++i) {
      settle();
      now_ns += kTellMemoryEveryNs;
      send(Tick{});
    }
    settle();
  }
  std::int64_t quota() const {
    return sink.memory->quota_bytes / morph.bounds.budget.page_bytes - morph.bounds.budget.pages;
  }
  bool lacks() const { return sink.memory->needs_bytes > sink.memory->quota_bytes; }
  bool logged(const std::string& entry) const {
    return place(entry) != static_cast<std::ptrdiff_t>(device.log.size());
  }
  std::ptrdiff_t finished() const {
    const auto all = sink.all<Finished>();
    return std::count_if(all.begin(), all.end(),
                         [](const Finished& one) { return one.reason == FinishReason::kLength; });
  }
};

TEST_F(Trading, PagesOfFreeBlocksAreGivenUpAndARequestThatNeedsThemWaitsForTheirReturn) {
  EXPECT_EQ(quota(), 0);
  EXPECT_FALSE(lacks());
  want(-36);
  EXPECT_EQ(quota(), 0) << "KV has them";
  pass();
  EXPECT_EQ(device.form().kv.blocks, kBlocks - 36);
  EXPECT_EQ(quota(), -36);
  EXPECT_EQ(sink.memory->wish, wishes);
  EXPECT_EQ(sink.form->pages.all, morph.bounds.budget.pages - 36);
  EXPECT_EQ(sink.form->pages.own, morph.bounds.budget.pages);
  EXPECT_FALSE(lacks());
  send(Arrival{request(1, 40, 16)});  // needs 7 blocks
  EXPECT_EQ(sink.all<Accepted>().size(), 1U) << "the model's own pages hold it";
  pass(3);
  EXPECT_TRUE(lacks());
  EXPECT_EQ(finished(), 0);
  want(0);
  EXPECT_EQ(quota(), 0) << "a larger quota is taken at once";
  pass(2);
  EXPECT_EQ(finished(), 1);
  EXPECT_EQ(device.form(), morph.start);
  EXPECT_FALSE(lacks());
}

TEST_F(Trading, GivingUpPagesIsCalledOffIfRequestsComeForThem) {
  want(-36);
  ASSERT_FALSE(device.preparing.empty());
  for (std::uint64_t id = 1; id <= 4; ++id) {
    send(Arrival{request(id, 40, 16)});
  }
  pass(2);
  EXPECT_EQ(finished(), 4);
  EXPECT_EQ(quota(), 0);
  EXPECT_FALSE(logged("quota " + std::to_string(morph.bounds.budget.pages - 36)));
  EXPECT_EQ(device.form(), morph.start);
}

TEST_F(Trading, AWishThatIsWithdrawnOrComesLateChangesNothing) {
  want(-36);
  want(0);
  send(WantQuota{.pages = morph.bounds.budget.pages - 20, .number = wishes - 1});
  pass(2);
  EXPECT_EQ(quota(), 0);
  EXPECT_EQ(device.form(), morph.start);
}

TEST_F(Trading, ADeviceThatStillHoldsPagesIsAskedAgainWithoutHaste) {
  device.refuses_quotas = true;
  want(-36);
  pass();
  EXPECT_EQ(quota(), 0);
  for (int i = 0; i < 3; ++i) {
    const TimeNs next_ns = engine.next_deadline_ns().value();
    EXPECT_GT(next_ns, now_ns + kTellMemoryEveryNs / 2);
    now_ns = next_ns - kNsPerMs;
    send(Tick{});
  }
  device.refuses_quotas = false;
  pass(2);
  EXPECT_EQ(quota(), -36);
}

TEST_F(Trading, AnOperatorIsToldWhichMemoryOthersHave) {
  want(-36);
  pass();
  send(Arrival{request(1, 40, 16)});  // needs 7 blocks
  const std::string why = error({.kv_blocks = kBlocks});
  EXPECT_NE(why.find("other models use 144"), std::string::npos) << why;
  ASSERT_TRUE(wish({.mode = MorphMode::kOff}).ok()) << "though KV has 4 blocks now";
  pass(2);
  EXPECT_TRUE(lacks()) << "a form that no policy changes needs all that is its own";
  want(0);
  pass(2);
  EXPECT_FALSE(lacks());
  EXPECT_EQ(device.form(), morph.start) << "KV takes what is free";
}

TEST_F(Trading, AnOperatorsFormIsReachedThoughPagesWereToBeGivenUp) {
  want(-36);
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kBf16)).ok());
  want(0);
  pass(2);
  EXPECT_EQ(device.form().layer_precision[0].mlp, Precision::kW4);
  EXPECT_EQ(quota(), 0);
}

TEST_F(Trading, TheKvOfAnOperatorsFormGrowsWhenThePagesComeBack) {
  want(-36);
  pass();
  ASSERT_TRUE(wish(layers(Precision::kBf16, Precision::kBf16)).ok());
  send(Arrival{request(1, 40, 16)});
  EXPECT_EQ(sink.all<Accepted>().size(), 1U);
  pass(2);
  EXPECT_TRUE(lacks());
  want(0);
  pass(2);
  EXPECT_TRUE(sink.form->pinned);
  EXPECT_EQ(device.form().kv.blocks, kBlocks);
  EXPECT_EQ(finished(), 1);
}

TEST_F(Trading, ARequestWaitsForTheModelsOwnPagesHoweverLongTheyAreAway) {
  want(-36);
  pass();
  send(Arrival{request(1, 40, 16)});
  for (int i = 0; i < 3; ++i) {
    now_ns += 60 * kNsPerS;
    pass();
  }
  want(0);
  pass(2);
  EXPECT_EQ(finished(), 1);
}

TEST_F(Trading, PagesThatWereNeededLatelyAreNotToSpare) {
  const std::int64_t idle = sink.memory->needs_bytes;
  send(Arrival{request(1, 40, 16)});
  pass(2);
  EXPECT_EQ(finished(), 1);
  EXPECT_GT(sink.memory->needs_bytes, idle);
  pass(110);
  EXPECT_EQ(sink.memory->needs_bytes, idle);
  EXPECT_FALSE(engine.next_deadline_ns().has_value()) << "nothing is left to tell";
}

// Precision may be lowered, but the model's own memory would suffice.
struct TradingOrLowering : EngineMorph {
  static MorphConfig hasty() {
    MorphConfig config = morph_for_test(kBlocks, MorphMode::kPerformance);
    config.policy.ttft_ns = 50 * kNsPerMs;
    config.decide_every_ns = 2 * kNsPerMs;
    config.own_pages = config.bounds.budget.pages;
    return config;
  }
  TradingOrLowering() : EngineMorph(hasty()) {}
  bool lowers() const {
    return std::any_of(device.log.begin(), device.log.end(), [](const std::string& entry) {
      return entry.find("w4") != std::string::npos;
    });
  }
};

TEST_F(TradingOrLowering, NoPrecisionIsLoweredForMemoryThatIsAboutToComeBack) {
  send(WantQuota{.pages = morph.own_pages - 36, .number = 1});
  settle();
  ASSERT_EQ(device.form().kv.blocks, kBlocks - 36);
  ASSERT_FALSE(lowers());
  send(Arrival{request(1, 40, 16)});
  for (int i = 0; i < 100; ++i) {
    send(Tick{});
  }
  EXPECT_FALSE(lowers());
  for (int i = 0; i < 1000; ++i) {
    send(Tick{});
  }
  EXPECT_TRUE(lowers()) << "it does not come";
}

struct Borrowing : Trading {
  Borrowing() : Trading(20) {}
};

TEST_F(Borrowing, PagesOfOtherModelsGoBackThoughSequencesThatRunHaveThem) {
  for (std::uint64_t id = 1; id <= 6; ++id) {
    send(Arrival{request(id, 40, 16)});
  }
  for (int i = 0; i < 12; ++i) {
    end_step();
  }
  ASSERT_GT(sink.observation.kv_blocks_used, kBlocks - 20);
  want(-20);
  pass(2);
  EXPECT_EQ(quota(), -20);
  EXPECT_EQ(finished(), 6);
  EXPECT_GT(sink.observation.preemptions_total, 0);
  EXPECT_EQ(device.form().kv.blocks, kBlocks - 20);
}

struct BorrowingMost : Trading {
  BorrowingMost() : Trading(36) {}
};

TEST_F(BorrowingMost, NoRequestIsAcceptedThatNeedsPagesOfOtherModels) {
  send(Arrival{request(1, 40, 16)});  // needs 7 blocks; 4 are the model's own
  EXPECT_EQ(sink.all<Refused>().size(), 1U);
  send(Arrival{request(2, 16, 16)});
  EXPECT_EQ(sink.all<Accepted>().size(), 1U);
  const std::string why = error({.kv_blocks = kBlocks});
  EXPECT_NE(why.find("4 KV blocks fit"), std::string::npos) << why;
}

}  // namespace
}  // namespace protean
