#include "device/cpu/low_priority.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <new>

namespace protean::cpu {
namespace {

constexpr int kLowestPriority = 19;

TEST(LowPriority, AppliesToTheWorkAlone) {
  const int before = getpriority(PRIO_PROCESS, 0);
  const int within = at_low_priority([] { return getpriority(PRIO_PROCESS, 0); });
  EXPECT_EQ(within, std::min(before + 10, kLowestPriority));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

TEST(LowPriority, ReturnsWhatCanOnlyBeMoved) {
  EXPECT_EQ(*at_low_priority([] { return std::make_unique<int>(7); }), 7);
}

TEST(LowPriority, ThrowsWhatTheWorkThrows) {
  EXPECT_THROW(run_at_low_priority([] { throw std::bad_alloc(); }), std::bad_alloc);
}

}  // namespace
}  // namespace protean::cpu
