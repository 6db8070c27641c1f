#include "measure/integer_speed.h"

#include <gtest/gtest.h>

#include <map>

namespace protean {
namespace {

std::array<Precision, 2> chosen(std::map<Precision, double> product_s) {
  return faster_precisions(Precision::kW8A8,
                           [&](Precision precision) { return product_s.at(precision); });
}

// An AMX machine multiplies bf16 as fast as integers, but has to widen quantised weights first.
TEST(FasterPrecisions, IntegersCompeteWithTheSameWeightsAndNotWithBf16) {
  std::map<Precision, double> product_s = {{Precision::kBf16, 1.0},
                                           {Precision::kW8, 1.4},
                                           {Precision::kW8A8, 1.0},
                                           {Precision::kW4, 1.5},
                                           {Precision::kW4A8, 1.1}};
  EXPECT_EQ(chosen(product_s), (std::array{Precision::kW8A8, Precision::kW4A8}));
  product_s[Precision::kW8] = 1.1;
  EXPECT_EQ(chosen(product_s), (std::array{Precision::kW8, Precision::kW4A8}))
      << "a tenth is not worth the quality, and each pair of weights is compared by itself";
  product_s[Precision::kW4] = 1.2;
  EXPECT_EQ(chosen(product_s), (std::array{Precision::kW8, Precision::kW4}));
}

}  // namespace
}  // namespace protean
