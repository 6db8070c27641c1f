#include "fleet/group_attempts.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

TEST(GroupAttempts, PausesAreLongerAfterEachFailureInARow) {
  GroupAttempts attempts;
  EXPECT_FALSE(attempts.failed(0, 0));
  TimeNs now_ns = 0;
  std::uint64_t failures = 0;
  for (const TimeNs pause_s : {1, 2, 4, 8, 16, 32, 32}) {
    EXPECT_TRUE(attempts.failed(++failures, now_ns));
    EXPECT_FALSE(attempts.failed(failures, now_ns)) << "it is known";
    EXPECT_FALSE(attempts.may_ask(now_ns + pause_s * kNsPerS - 1));
    EXPECT_FALSE(attempts.failed(++failures, now_ns + 1)) << "it was asked for before";
    now_ns += pause_s * kNsPerS;
    EXPECT_TRUE(attempts.may_ask(now_ns));
  }
  now_ns += 33 * kNsPerS;
  EXPECT_TRUE(attempts.failed(++failures, now_ns));
  EXPECT_EQ(attempts.not_before_ns(), now_ns + kNsPerS) << "the others are long ago";
}

}  // namespace
}  // namespace protean
