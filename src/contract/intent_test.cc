#include "contract/intent.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

TEST(Intent, ReadsWhatItPrints) {
  for (const char* text : {"min-latency", "min-cost", "min-memory", "min-device-hours",
                           "latency-slo=500ms", "cost-slo=0.02"}) {
    const auto intent = parse_intent(text);
    ASSERT_TRUE(intent.ok()) << text;
    EXPECT_EQ(to_string(*intent), text);
  }
}

TEST(Intent, AnSloMinimisesTheOtherQuantity) {
  const auto latency = parse_intent("latency-slo=1.5s");
  ASSERT_TRUE(latency.ok());
  EXPECT_EQ(latency->objective, Objective::kCost);
  EXPECT_DOUBLE_EQ(*latency->latency_slo_ms, 1500);
  const auto cost = parse_intent("cost-slo=3");
  ASSERT_TRUE(cost.ok());
  EXPECT_EQ(cost->objective, Objective::kLatency);
  EXPECT_DOUBLE_EQ(*cost->cost_slo, 3);
}

TEST(Intent, AnUnknownWordNamesTheNearestOne) {
  const auto intent = parse_intent("min-latancy");
  ASSERT_FALSE(intent.ok());
  EXPECT_NE(intent.error().message.find("did you mean min-latency?"), std::string::npos)
      << intent.error().message;
}

TEST(Intent, BudgetsAreNumbersAboveZeroWithTheirUnit) {
  for (const char* text : {"latency-slo", "latency-slo=", "latency-slo=500", "latency-slo=-1ms",
                           "latency-slo=0ms", "latency-slo=nanms", "latency-slo=1ms!", "cost-slo=",
                           "cost-slo=0", "cost-slo=inf", "cost-slo=1ms", "", "latency"}) {
    EXPECT_FALSE(parse_intent(text).ok()) << text;
  }
}

TEST(CostFormula, ReadsWhatItPrints) {
  for (const char* text : {"memory-time", "memory", "device-time"}) {
    const auto formula = parse_cost_formula(text);
    ASSERT_TRUE(formula.ok());
    EXPECT_EQ(to_string(*formula), text);
  }
  EXPECT_FALSE(parse_cost_formula("time").ok());
}

}  // namespace
}  // namespace protean
