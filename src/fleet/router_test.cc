#include "fleet/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace protean {
namespace {

constexpr RouterPolicy kAll[] = {RouterPolicy::kFirstToken, RouterPolicy::kFreeness,
                                 RouterPolicy::kLeastLoaded, RouterPolicy::kRoundRobin};

ReplicaView loaded(int running, int waiting, std::int64_t used, std::int64_t awaited) {
  return {.load = {.running = running,
                   .waiting = waiting,
                   .kv_blocks = 100,
                   .kv_blocks_used = used,
                   .kv_blocks_awaited = awaited}};
}

ReplicaView expecting(std::int64_t tokens, std::int64_t before, TimeNs first_ns) {
  return {.expected = {.tokens = tokens, .before = {.tokens = before}, .first_token_ns = first_ns}};
}

ReplicaView refusing(ErrorCode code) {
  return {.expected = {.refusal = Error{code, "no"}}};
}

TEST(Router, NamesAreReadBack) {
  for (const RouterPolicy policy : kAll) {
    EXPECT_EQ(parse_router(to_string(policy)).value(), policy);
  }
  const auto unknown = parse_router("random");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message,
            "--router random: use first-token, freeness, least-loaded or round-robin");
}

TEST(Router, RoundRobinTakesTurnsWhateverTheLoad) {
  const std::vector<ReplicaView> three = {loaded(9, 9, 90, 9), loaded(0, 0, 0, 0),
                                          loaded(1, 0, 5, 0)};
  for (std::size_t turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(choose_replica(RouterPolicy::kRoundRobin, three, turn), turn);
  }
}

TEST(Router, LeastLoadedCountsRequestsThenBlocks) {
  const std::vector<ReplicaView> three = {loaded(3, 1, 10, 5), loaded(2, 1, 90, 5),
                                          loaded(3, 0, 20, 0)};
  EXPECT_EQ(choose_replica(RouterPolicy::kLeastLoaded, three, 0), 2U);
}

// Three requests with 10 blocks each leave more for each than one request with 80.
TEST(Router, FreenessIsBlocksForEachRequest) {
  EXPECT_DOUBLE_EQ(freeness(loaded(3, 1, 30, 10).load), 15);
  const std::vector<ReplicaView> two = {loaded(1, 0, 80, 0), loaded(3, 0, 30, 0)};
  EXPECT_EQ(choose_replica(RouterPolicy::kFreeness, two, 0), 1U);
  EXPECT_EQ(choose_replica(RouterPolicy::kLeastLoaded, two, 0), 0U);
}

TEST(Router, FreenessOfAQueueIsNegativeAndOfNoRequestsTheMost) {
  EXPECT_LT(freeness(loaded(2, 4, 90, 50).load), 0);
  const std::vector<ReplicaView> three = {loaded(1, 0, 1, 0), loaded(1, 7, 99, 70),
                                          loaded(0, 0, 0, 0)};
  EXPECT_EQ(choose_replica(RouterPolicy::kFreeness, three, 0), 2U);
}

TEST(Router, FirstTokenWeighsWhatThePrefixCacheSavesAgainstTheQueue) {
  const ReplicaView cached = expecting(16, 500, 5'160);
  const ReplicaView empty = expecting(500, 0, 5'000);
  const ReplicaView cached_and_free = expecting(16, 100, 1'160);
  EXPECT_EQ(choose_replica(RouterPolicy::kFirstToken, std::vector{cached, empty}, 0), 1U);
  EXPECT_EQ(choose_replica(RouterPolicy::kFirstToken, std::vector{empty, cached_and_free}, 0), 1U);
}

TEST(Router, AReplicaThatMeasuredNothingIsAsFastAsTheOthers) {
  const ReplicaView measured = expecting(100, 0, 1'000);
  const ReplicaView busy = expecting(100, 400, 0);
  const ReplicaView cached = expecting(20, 0, 0);
  EXPECT_EQ(choose_replica(RouterPolicy::kFirstToken, std::vector{busy, measured}, 0), 1U);
  const ReplicaView hit = expecting(16, 0, 1'000);  // a step, which takes as long for more tokens
  const ReplicaView miss = expecting(200, 0, 0);
  EXPECT_EQ(choose_replica(RouterPolicy::kFirstToken, std::vector{miss, hit}, 0), 1U);
  EXPECT_EQ(choose_replica(RouterPolicy::kFirstToken, std::vector{measured, cached}, 0), 1U);
  EXPECT_EQ(choose_replica(RouterPolicy::kFirstToken, std::vector{busy, cached}, 0), 1U);
}

TEST(Router, ARefusalThatALaterAttemptMayAvoidIsGivenFirst) {
  const ReplicaView late = refusing(ErrorCode::kExhausted);
  const ReplicaView pinned = refusing(ErrorCode::kUnavailable);
  const ReplicaView never = refusing(ErrorCode::kInvalidArgument);
  for (const RouterPolicy policy : kAll) {
    EXPECT_EQ(choose_replica(policy, std::vector{never, pinned, late}, 0), 2U);
    EXPECT_EQ(choose_replica(policy, std::vector{never, pinned, never}, 0), 1U);
  }
}

// Random candidates: a request is refused only if all refuse it, and the choice is a candidate that
// no other one beats by its own measure.
TEST(Router, NeverRefusesWhatOneWouldAccept) {
  std::mt19937 random(1);
  const auto up_to = [&](int most) { return static_cast<int>(random() % (most + 1U)); };
  for (int round = 0; round < 2'000; ++round) {
    std::vector<ReplicaView> candidates(1 + random() % 8);
    bool one_accepts = false;
    for (ReplicaView& candidate : candidates) {
      candidate = loaded(up_to(4), up_to(3), up_to(60), up_to(30));
      candidate.expected.tokens = 1 + up_to(100);
      candidate.expected.first_token_ns = 1 + up_to(1'000);
      if (random() % 2 == 0) {
        candidate.expected.refusal = refusing(ErrorCode::kExhausted).expected.refusal;
      }
      one_accepts = one_accepts || !candidate.expected.refusal;
    }
    for (const RouterPolicy policy : kAll) {
      const ReplicaView& chosen =
          candidates[choose_replica(policy, candidates, random() % candidates.size())];
      EXPECT_EQ(!chosen.expected.refusal, one_accepts);
      for (const ReplicaView& other : candidates) {
        if (one_accepts && other.expected.refusal) {
          continue;
        }
        if (policy == RouterPolicy::kFirstToken) {
          EXPECT_LE(chosen.expected.first_token_ns, other.expected.first_token_ns);
        } else if (policy == RouterPolicy::kFreeness) {
          EXPECT_GE(freeness(chosen.load), freeness(other.load));
        } else if (policy == RouterPolicy::kLeastLoaded) {
          EXPECT_LE(chosen.load.running + chosen.load.waiting,
                    other.load.running + other.load.waiting);
        }
      }
    }
  }
}

}  // namespace
}  // namespace protean
