#include "engine/recent_most.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

TEST(RecentMost, APeakIsForgottenAfterOneToTwoWindows) {
  RecentMost recent(10);
  EXPECT_EQ(recent.most(), 0);
  recent.see(7, 3);
  recent.see(2, 4);
  EXPECT_EQ(recent.most(), 7);
  recent.see(3, 10);
  EXPECT_EQ(recent.most(), 7) << "in the window before";
  recent.see(1, 19);
  EXPECT_EQ(recent.most(), 7);
  recent.see(1, 20);
  EXPECT_EQ(recent.most(), 3);
  recent.see(1, 100);
  EXPECT_EQ(recent.most(), 1);
}

}  // namespace
}  // namespace protean
