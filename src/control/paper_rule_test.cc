#include "control/paper_rule.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

constexpr PressureSample kQuiet{.kv_blocks = 100, .kv_blocks_used = 10};
constexpr PressureSample kQueue{
    .oldest_wait_ns = 200 * kNsPerMs, .kv_blocks = 100, .kv_blocks_used = 10};
constexpr PressureSample kFull{.kv_blocks = 100, .kv_blocks_used = 90};
constexpr PressureSample kLacking{.kv_blocks = 100, .kv_blocks_used = 50, .kv_blocks_wanted = 60};

std::size_t after(const PressureSample& sample, int passes, std::size_t at) {
  PaperRule rule;
  for (int i = 0; i < passes; ++i) {
    rule.step_done(sample);
  }
  return rule.next(at, 9, 1, 100);
}

TEST(PaperRule, AQueueOrAFullCacheOrMissingBlocksLowerALayer) {
  for (const PressureSample& sample : {kQueue, kFull, kLacking}) {
    EXPECT_EQ(after(sample, 3, 4), 5U);
    EXPECT_EQ(after(sample, 2, 4), 4U) << "it has to persist";
    EXPECT_EQ(after(sample, 9, 8), 8U) << "the last form";
  }
}

TEST(PaperRule, RestoresALayerWhenNeitherIsAndTheCacheFits) {
  EXPECT_EQ(after(kQuiet, 3, 4), 3U);
  EXPECT_EQ(after(kQuiet, 3, 0), 0U);
  PaperRule rule;
  for (int i = 0; i < 3; ++i) {
    rule.step_done({.kv_blocks = 100, .kv_blocks_used = 50});
  }
  EXPECT_EQ(rule.next(4, 9, 1, 55), 4U) << "it would be over the threshold again";
}

}  // namespace
}  // namespace protean
