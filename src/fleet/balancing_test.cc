#include "fleet/balancing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace protean {
namespace {

using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;

Observation with_kv(int running, std::int64_t blocks, std::int64_t used) {
  return {.running = running, .kv_blocks = blocks, .kv_blocks_used = used};
}

TEST(Balancing, NamesAreReadBack) {
  for (const MigratePolicy policy : {MigratePolicy::kOff, MigratePolicy::kLoad}) {
    EXPECT_EQ(parse_migrate(to_string(policy)).value(), policy);
  }
  EXPECT_EQ(parse_migrate("on").error().message, "--migrate on: use off or load");
}

TEST(Balancing, TheLeastFreeGivesToTheFreest) {
  const double idle = std::numeric_limits<double>::infinity();
  const std::vector<BalanceCandidate> candidates = {{2.5, true}, {3, true},     {-4, true},
                                                    {50, true},  {idle, false}, {2.9, true}};
  EXPECT_EQ(pair_by_freeness(candidates), Pairs({{2, 3}, {0, 1}}))
      << "a replica without a place takes none, and the third that is short waits";
  EXPECT_EQ(pair_by_freeness(std::vector<BalanceCandidate>{{2, true}, {1, true}}), Pairs());
  EXPECT_EQ(pair_by_freeness(std::vector<BalanceCandidate>{{3, true}, {90, true}}), Pairs());
}

TEST(Balancing, AMoveLeavesItsTakerAtLeastAsFreeAndNotShort) {
  EXPECT_TRUE(evens_out(with_kv(4, 100, 95), with_kv(4, 100, 40), 10));
  EXPECT_FALSE(evens_out(with_kv(4, 100, 95), with_kv(4, 100, 70), 16)) << "14 blocks for 5 left";
  EXPECT_FALSE(evens_out(with_kv(4, 100, 95), with_kv(4, 100, 40), 40)) << "it would turn the pair";
  EXPECT_FALSE(evens_out(with_kv(1, 100, 99), with_kv(0, 100, 0), 1)) << "alone it lacks nothing";
}

struct BalancedReplica {
  std::int64_t blocks = 0;
  std::int64_t awaited = 0;
  int waiting = 0;
  std::vector<std::pair<std::int64_t, int>> requests;  // blocks and number

  Observation load() const {
    Observation load{.running = static_cast<int>(requests.size()),
                     .waiting = waiting,
                     .kv_blocks = blocks,
                     .kv_blocks_awaited = awaited};
    for (const auto& [used, number] : requests) {
      load.kv_blocks_used += used;
    }
    return load;
  }
};

std::vector<BalancedReplica> random_fleet(std::mt19937& random) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  std::vector<BalancedReplica> fleet(2 + random() % 7);
  int number = 0;
  for (BalancedReplica& replica : fleet) {
    replica.blocks = 50 + below(200);
    replica.waiting = below(3);
    replica.awaited = replica.waiting * below(60);
    for (std::int64_t used = 1 + below(20); used < replica.blocks * below(2);
         used += 1 + below(20)) {
      replica.requests.emplace_back(1 + below(20), number++);
    }
    std::sort(replica.requests.begin(), replica.requests.end());
  }
  return fleet;
}

// Makes the moves of one round. Returns the numbers of the requests that moved.
std::vector<int> move_once(std::vector<BalancedReplica>& fleet) {
  std::vector<BalanceCandidate> candidates;
  for (const BalancedReplica& replica : fleet) {
    candidates.push_back({freeness(replica.load()), true});
  }
  std::vector<int> moved;
  for (const auto& [giver, taker] : pair_by_freeness(candidates)) {
    BalancedReplica& from = fleet[giver];
    BalancedReplica& to = fleet[taker];
    const auto found = std::find_if(
        from.requests.begin(), from.requests.end(),
        [&](const auto& request) { return evens_out(from.load(), to.load(), request.first); });
    if (found != from.requests.end()) {
      moved.push_back(found->second);
      to.requests.push_back(*found);
      from.requests.erase(found);
      EXPECT_GE(freeness(to.load()), freeness(from.load()));
    }
  }
  return moved;
}

// While loads do not change otherwise, no request moves twice, so balancing ends.
TEST(Balancing, NothingMovesBackAndForth) {
  std::size_t moves = 0;
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    std::mt19937 random(seed);
    std::vector<BalancedReplica> fleet = random_fleet(random);
    std::set<int> have_moved;
    for (std::vector<int> moved = move_once(fleet); !moved.empty(); moved = move_once(fleet)) {
      for (const int request : moved) {
        EXPECT_TRUE(have_moved.insert(request).second) << "request " << request;
      }
    }
    moves += have_moved.size();
  }
  EXPECT_GT(moves, 500U);
}

}  // namespace
}  // namespace protean
