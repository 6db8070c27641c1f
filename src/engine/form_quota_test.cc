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
  explicit Trading(std::int64_t borrowed = 0) : Trading(trading(borrowed)) {}
  explicit Trading(const MorphConfig& config) : EngineMorph(config) { want(0); }

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
  std::ptrdiff_t resizes() const {
    return std::count_if(device.log.begin(), device.log.end(), [](const std::string& entry) {
      return entry.starts_with("prepare KV to ");
    });
  }
  std::ptrdiff_t finished(FinishReason reason = FinishReason::kLength) const {
    const auto all = sink.all<Finished>();
    return std::count_if(all.begin(), all.end(),
                         [&](const Finished& one) { return one.reason == reason; });
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

TEST_F(Trading, AWishForAnEarlierEngineChangesNothing) {
  MorphConfig config = morph;
  config.wishes_before = 5;
  HeldDevice reloaded(config);
  RecordingSink heard;
  Engine later(engine_for_test(config), reloaded, heard);
  const std::int64_t pages = config.bounds.budget.pages - 36;
  later.handle({1, WantQuota{.pages = pages, .number = 5}});
  EXPECT_TRUE(reloaded.preparing.empty());
  EXPECT_FALSE(heard.memory) << "it knows of no other model";
  later.handle({2, WantQuota{.pages = pages, .number = 6}});
  EXPECT_FALSE(reloaded.preparing.empty());
  EXPECT_TRUE(heard.memory);
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
  EXPECT_EQ(why.find("lower more layers"), std::string::npos) << "one way out: " << why;
  ASSERT_TRUE(wish({.mode = MorphMode::kOff}).ok()) << "though KV has 4 blocks now";
  pass(2);
  EXPECT_TRUE(lacks()) << "a form that no policy changes needs all that is its own";
  want(0);
  pass(2);
  EXPECT_FALSE(lacks());
  EXPECT_EQ(device.form(), morph.start) << "KV takes what is free";
}

// Replicas agree on a group by the forms that they have, so that these must not change then.
TEST_F(Trading, AFormThatIsHeldTakesPagesThatComeBackAfterTheHold) {
  want(-36);
  pass();
  ASSERT_TRUE(wish({.mode = MorphMode::kOff}).ok());
  engine.hold_form(true);
  want(0);
  pass(5);
  EXPECT_EQ(quota(), 0);
  EXPECT_EQ(device.form().kv.blocks, kBlocks - 36);
  engine.hold_form(false);
  pass(5);
  EXPECT_EQ(device.form(), morph.start);
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

TEST_F(Trading, AnOperatorsFormStaysIfAStepThatPagesAreTradedForFails) {
  ASSERT_TRUE(wish(layers(Precision::kBf16, Precision::kBf16)).ok());
  want(-36);
  fail(0, "no answer");
  EXPECT_TRUE(sink.form->pinned);
  pass();
  ASSERT_EQ(quota(), -36);
  want(0);
  ASSERT_EQ(device.preparing.size(), 1U);
  fail(0, "no memory");
  EXPECT_TRUE(sink.form->pinned);
  EXPECT_EQ(resizes(), 3) << "KV is not grown again at once";
  pass(25);
  EXPECT_TRUE(sink.form->pinned);
  EXPECT_EQ(device.form(), morph.start);
  EXPECT_EQ(resizes(), 4);
  ASSERT_TRUE(wish({.kv_blocks = 20}).ok());
  fail(0, "no answer");
  EXPECT_FALSE(sink.form->pinned) << "an operator asked for this one";
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

TEST_F(Trading, ARequestDoesNotWaitWithoutEndForPagesThatAreLost) {
  want(-36);
  pass();
  send(Arrival{request(1, 40, 16)});
  now_ns += 600 * kNsPerS;
  pass();
  send(WantQuota{.pages = morph.bounds.budget.pages - 36, .number = ++wishes, .own_is_lost = true});
  now_ns += 59 * kNsPerS;
  pass();
  EXPECT_TRUE(sink.all<Finished>().empty());
  now_ns += kNsPerS;
  pass();
  EXPECT_EQ(finished(FinishReason::kFailed), 1);
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
  static MorphConfig hasty(std::int64_t blocks) {
    MorphConfig config = morph_for_test(blocks, MorphMode::kPerformance);
    config.policy.ttft_ns = 50 * kNsPerMs;
    config.decide_every_ns = 2 * kNsPerMs;
    config.own_pages = config.bounds.budget.pages;
    return config;
  }
  explicit TradingOrLowering(std::int64_t blocks = kBlocks) : EngineMorph(hasty(blocks)) {}
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

struct LoweringInVain : TradingOrLowering {
  LoweringInVain() : TradingOrLowering(6) {}
};

TEST_F(LoweringInVain, ARequestThatTheModelsOwnPagesWouldNotHoldDoesNotWaitForThem) {
  send(WantQuota{.pages = morph.own_pages - 2, .number = 1});
  settle();
  ASSERT_EQ(device.form().kv.blocks, 4);
  send(Arrival{request(1, 50, 4)});  // needs 7 blocks
  ASSERT_EQ(sink.all<Accepted>().size(), 1U) << "a form of fewer bits holds it";
  const TimeNs began_ns = now_ns;
  while (sink.all<Finished>().empty() && now_ns < began_ns + 70 * kNsPerS) {
    if (!device.preparing.empty()) {
      fail(0, "no such variant");
    } else {
      now_ns += 50 * kNsPerMs;
      send(Tick{});
    }
  }
  ASSERT_EQ(sink.all<Finished>().size(), 1U);
  EXPECT_EQ(sink.all<Finished>()[0].reason, FinishReason::kFailed);
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

MorphConfig returning_in_pieces() {
  MorphConfig config = trading(20);
  config.quota_piece_bytes = 8 * config.bounds.budget.page_bytes;
  return config;
}

// Three pieces are to be returned, and no policy decides about KV.
struct BorrowingInPieces : Trading {
  BorrowingInPieces() : Trading(returning_in_pieces()) {
    EXPECT_TRUE(wish({.mode = MorphMode::kOff}).ok());
    want(-20);
    settle();
  }
};

TEST_F(BorrowingInPieces, KvDoesNotGrowBetweenTwoPiecesThatGoBack) {
  EXPECT_EQ(quota(), -8);
  pass(3);
  EXPECT_EQ(quota(), -20);
  EXPECT_EQ(device.form().kv.blocks, kBlocks - 20);
  EXPECT_EQ(resizes(), 1);
}

TEST_F(BorrowingInPieces, KvGrowsAgainIfTheRestMayStay) {
  ASSERT_EQ(quota(), -8);
  want(-8);
  pass();
  EXPECT_EQ(quota(), -8);
  EXPECT_EQ(device.form().kv.blocks, kBlocks - 8);
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

MorphConfig borrowing_most_with_largest(std::int64_t blocks) {
  MorphConfig config = trading(36);
  config.own_kv_blocks = blocks;
  return config;
}

struct BorrowingForAWish : Trading {
  BorrowingForAWish() : Trading(borrowing_most_with_largest(6)) {}
};

TEST_F(BorrowingForAWish, AnOperatorIsToldHowMuchKvTheModelsOwnPagesHoldAtMost) {
  const std::string most = error({.kv_blocks = 7});
  EXPECT_NE(most.find("1 to 6"), std::string::npos) << most;
  const std::string now = error({.kv_blocks = 6});
  EXPECT_NE(now.find("4 KV blocks fit"), std::string::npos) << now;
}

}  // namespace
}  // namespace protean
