#include "worker/use_meter.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

// Two devices, and two steps that overlap: the first device computes from 0 to 30 and from 30 to
// 60, the second one from 30 to 40 and from 60 to 70. Nothing is in flight from 70 to 100.
TEST(UseMeter, CountsTheTimeWithAStepInFlightOnceForEachDevice) {
  UseMeter meter(2);
  EXPECT_EQ(meter.use().bubble_share(), 0) << "nothing is counted";
  meter.step_begins(1000);
  meter.step_begins(1000);
  meter.computed(30);
  meter.computed(10);
  meter.step_ends(1040);
  meter.computed(30);
  meter.computed(10);
  meter.step_ends(1070);
  EXPECT_EQ(meter.use().span_ns, 140);
  EXPECT_EQ(meter.use().busy_ns, 80);
  EXPECT_DOUBLE_EQ(meter.use().bubble_share(), 1 - 80.0 / 140);
  meter.step_begins(1100);
  meter.computed(20);
  meter.computed(20);
  meter.step_ends(1120);
  EXPECT_EQ(meter.use().span_ns, 180);
  EXPECT_EQ(meter.use().busy_ns, 120);
}

TEST(UseMeter, CountsStepsInFlightUntilTheLastChange) {
  UseMeter meter(2);
  meter.step_begins(100);
  meter.step_begins(120);
  EXPECT_EQ(meter.use().span_ns, 40);
  meter.step_begins(110);  // its thread read the clock before, and came later
  EXPECT_EQ(meter.use().span_ns, 40);
  meter.step_ends(150);
  EXPECT_EQ(meter.use().span_ns, 100);
}

}  // namespace
}  // namespace protean
