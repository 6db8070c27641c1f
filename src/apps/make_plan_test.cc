#include "apps/make_plan.h"

#include <gtest/gtest.h>

#include "cost/known_models.h"

namespace protean {
namespace {

TEST(MakePlan, EndsBetweenItsPartsWhenItIsToldTo) {
  const auto known = find_known_model("llama-2-70b", true);
  ASSERT_TRUE(known.ok());
  int looks = 0;
  PlanOptions options{.devices = "8xA6000"};
  options.harvest.goes_on = [&] { return ++looks < 1; };
  const auto plan = make_plan(options, {.name = "m", .identity = "m", .spec = known->spec}, {});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(plan.error().message, "the plan was stopped");
  EXPECT_EQ(looks, 1);
}

}  // namespace
}  // namespace protean
