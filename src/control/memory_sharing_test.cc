#include "control/memory_sharing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace protean {
namespace {

MemoryAccount account(std::int64_t own, std::int64_t quota, std::int64_t needs) {
  return {.page_bytes = 1, .own = own, .quota = quota, .needs = needs, .most = 1000};
}

std::vector<std::int64_t> shared(const std::vector<MemoryAccount>& accounts,
                                 std::int64_t unused = 0) {
  return share_memory(accounts, unused);
}

using Quotas = std::vector<std::int64_t>;

TEST(MemorySharing, MovesNothingUnlessAModelLacksMemory) {
  EXPECT_EQ(shared({account(100, 100, 0), account(100, 100, 100)}), (Quotas{100, 100}));
  EXPECT_EQ(shared({account(100, 60, 10), account(100, 140, 20)}), (Quotas{60, 140}))
      << "what was lent stays where it is until it is needed";
  EXPECT_EQ(shared({account(100, 100, 300), account(100, 100, 300)}), (Quotas{100, 100}))
      << "equal loads move nothing";
}

TEST(MemorySharing, AModelThatLacksMemoryGetsWhatOthersDoNotNeed) {
  EXPECT_EQ(shared({account(100, 100, 120), account(100, 100, 20)}), (Quotas{120, 80}));
  EXPECT_EQ(shared({account(100, 100, 900), account(100, 100, 20)}), (Quotas{140, 60}))
      << "a lender keeps half of what it does not need of its own";
  EXPECT_EQ(shared({account(100, 140, 900), account(100, 60, 20)}), (Quotas{140, 60}))
      << "and does not halve it again";
  EXPECT_EQ(shared({account(100, 100, 150), account(100, 100, 60), account(100, 100, 0)}),
            (Quotas{150, 100, 50}))
      << "the model with most gives first";
  EXPECT_EQ(shared({account(100, 100, 120), account(100, 150, 110), account(100, 50, 0)}),
            (Quotas{120, 130, 50}))
      << "also of what it borrowed";
  MemoryAccount full = account(100, 100, 900);
  full.most = 110;
  EXPECT_EQ(shared({full, account(100, 100, 0)}), (Quotas{110, 90}));
}

TEST(MemorySharing, AModelGetsItsOwnBackWhateverOthersNeed) {
  EXPECT_EQ(shared({account(100, 60, 90), account(100, 140, 900)}), (Quotas{90, 110}));
  EXPECT_EQ(shared({account(100, 60, 900), account(100, 140, 900)}), (Quotas{100, 100}));
  EXPECT_EQ(shared({account(100, 60, 10), account(100, 100, 10)}, 40), (Quotas{100, 100}))
      << "what no model has goes back";
}

// Models of different page sizes with changing needs. Models refuse to become smaller at times, and
// get no more than there is.
TEST(MemorySharing, MemoryIsConservedAndOwnMemoryComesBackInAnyOrderOfEvents) {
  std::mt19937_64 random(7);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<MemoryAccount> accounts(2 + random() % 3);
    std::int64_t all = 0;
    for (MemoryAccount& account : accounts) {
      account.page_bytes = std::int64_t{1} << below(5);
      account.own = account.page_bytes * (8 + below(40));
      account.quota = account.own;
      all += account.own;
    }
    std::int64_t unused = 0;
    for (int event = 0; event < 50; ++event) {
      for (MemoryAccount& account : accounts) {
        account.most = all / account.page_bytes * account.page_bytes;
        account.needs = random() % 3 == 0 ? below(2 * account.own) : account.needs;
      }
      const bool willing = random() % 4 != 0;
      const std::vector<std::int64_t> wanted = share_memory(accounts, unused);
      ASSERT_LE(std::accumulate(wanted.begin(), wanted.end(), std::int64_t{0}), all);
      for (std::size_t i = 0; i < accounts.size(); ++i) {
        const MemoryAccount& account = accounts[i];
        ASSERT_EQ(wanted[i] % account.page_bytes, 0);
        ASSERT_LE(wanted[i], account.most);
        ASSERT_GE(wanted[i], std::min({account.needs, account.own, account.quota}));
        ASSERT_GE(wanted[i], std::min(account.needs, account.own)) << "own memory comes back";
        if (wanted[i] < account.quota && (willing || random() % 2 == 0)) {
          unused += account.quota - wanted[i];
          accounts[i].quota = wanted[i];
        }
      }
      for (std::size_t i = 0; i < accounts.size(); ++i) {
        MemoryAccount& account = accounts[i];
        if (wanted[i] > account.quota && wanted[i] - account.quota <= unused) {
          unused -= wanted[i] - account.quota;
          account.quota = wanted[i];
        }
      }
      std::int64_t sum = unused;
      for (const MemoryAccount& account : accounts) {
        sum += account.quota;
      }
      ASSERT_EQ(sum, all);
      ASSERT_GE(unused, 0);
    }
  }
}

}  // namespace
}  // namespace protean
