#include "device/cpu/seat.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "base/units.h"
#include "device/cpu/pages.h"

namespace protean::cpu {
namespace {

struct Policy {
  long asked = -1;  // 0 if the system call succeeded
  int mode = -1;
  std::array<unsigned long, 16> nodes{};
};

Policy policy_of_thread() {
  Policy policy;
  policy.asked = syscall(SYS_get_mempolicy, &policy.mode, policy.nodes.data(), 1024, nullptr, 0);
  return policy;
}

Policy policy_at(const std::byte* address) {
  Policy policy;
  policy.asked =
      syscall(SYS_get_mempolicy, &policy.mode, policy.nodes.data(), 1024, address, MPOL_F_ADDR);
  return policy;
}

// Returns false if the system refuses memory policies, as some containers do.
bool system_has_policies() {
  const std::vector<int> nodes = {0};
  return policy_of_thread().asked == 0 && Seat({}, nodes).taken().ok();
}

TEST(Seat, RestrictsAThreadAndRestoresIt) {
  const std::vector<int> before = allowed_cpus();
  ASSERT_FALSE(before.empty());
  {
    const Seat seat{std::span(before).last(1), {}};
    ASSERT_TRUE(seat.taken().ok()) << seat.taken().error().message;
    EXPECT_EQ(allowed_cpus(), std::vector(1, before.back()));
  }
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(Seat, AppliesToOneThread) {
  const std::vector<int> before = allowed_cpus();
  std::vector<int> of_other;
  std::thread other([&] {
    const Seat seat{std::span(before).first(1), {}};
    of_other = allowed_cpus();
  });
  other.join();
  EXPECT_EQ(of_other, std::vector(1, before.front()));
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(Seat, EmptyListsChangeNothing) {
  const std::vector<int> before = allowed_cpus();
  const Seat seat({}, {});
  EXPECT_TRUE(seat.taken().ok());
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(Seat, InvalidCpusAreRefusedAndChangeNothing) {
  const std::vector<int> before = allowed_cpus();
  const std::vector<int> nowhere = {60000};
  {
    const Seat seat(nowhere, {});
    ASSERT_FALSE(seat.taken().ok());
    EXPECT_EQ(seat.taken().error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(allowed_cpus(), before);
  }
  {
    const std::vector<int> no_node = {1000};
    EXPECT_FALSE(Seat({}, no_node).taken().ok());
  }
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(Seat, MemoryComesFromItsNodesUntilItIsDestroyed) {
  const Policy before = policy_of_thread();
  if (!system_has_policies()) {
    GTEST_SKIP() << "the system refuses memory policies";
  }
  const std::vector<int> nodes = {0};
  {
    const Seat seat({}, nodes);
    const Policy now = policy_of_thread();
    EXPECT_EQ(now.mode, MPOL_PREFERRED);
    EXPECT_EQ(now.nodes[0], 1UL);
  }
  EXPECT_EQ(policy_of_thread().mode, before.mode);
  EXPECT_EQ(policy_of_thread().nodes, before.nodes);
}

bool system_places_memory(std::span<const int> nodes) {
  const int file = memfd_create("placed", MFD_CLOEXEC);
  const bool placed = ftruncate(file, 2 * kMiB) == 0 && place_memory(file, 2 * kMiB, nodes);
  close(file);
  return placed;
}

// The policy belongs to the memory, so the thread and the mapping that touch it first do not
// matter.
TEST(PagePool, PagesComeFromItsNodes) {
  const std::vector<int> one = {0};
  if (!system_has_policies() || !system_places_memory(one)) {
    GTEST_SKIP() << "the system refuses memory policies";
  }
  const std::vector<int> in_turns = {0, 0};
  for (const std::vector<int>& nodes : {one, in_turns}) {
    const auto pool = PagePool::create(2 * kMiB, 8, nodes);
    ASSERT_TRUE(pool.ok()) << pool.error().message;
    auto range = PageRange::reserve(**pool, 8);
    ASSERT_TRUE(range.ok() && range->attach(8).ok());
    for (std::int64_t page = 0; page < 8; ++page) {
      const Policy policy = policy_at(range->data() + page * 2 * kMiB);
      EXPECT_EQ(policy.mode, MPOL_PREFERRED) << "page " << page;
      EXPECT_EQ(policy.nodes[0], 1UL) << "page " << page;
    }
  }
  const auto anywhere = PagePool::create(2 * kMiB, 1);
  ASSERT_TRUE(anywhere.ok());
  auto range = PageRange::reserve(**anywhere, 1);
  ASSERT_TRUE(range.ok() && range->attach(1).ok());
  EXPECT_EQ(policy_at(range->data()).mode, MPOL_DEFAULT);
}

}  // namespace
}  // namespace protean::cpu
