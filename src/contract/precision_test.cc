#include "contract/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace protean {
namespace {

TEST(Precision, NamesRoundTrip) {
  for (const Precision precision : kPrecisions) {
    EXPECT_EQ(*parse_precision(to_string(precision)), precision);
  }
  for (const char* unknown : {"int7", "w3a8", "w8a16", "", "?"}) {
    EXPECT_FALSE(parse_precision(unknown).ok()) << unknown;
  }
}

TEST(Precision, IsOrderedByWeightsAndThenByActivations) {
  EXPECT_TRUE(std::is_sorted(kPrecisions.begin(), kPrecisions.end()));
  EXPECT_TRUE(is_lower(Precision::kW8A7, Precision::kW8A8));
  EXPECT_TRUE(is_lower(Precision::kW4, Precision::kW8A7));
  EXPECT_FALSE(is_lower(Precision::kW4, Precision::kW4));
  for (std::size_t i = 0; i < kPrecisions.size(); ++i) {
    EXPECT_EQ(index_of(kPrecisions[i]), i);
  }
}

TEST(Precision, HasTwoAxes) {
  EXPECT_EQ(Precision::kW4A8.weights, Precision::kW4.weights);
  EXPECT_EQ(weight_only(Precision::kW8A7), Precision::kW8);
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kW3}) {
    EXPECT_EQ(weight_only(precision), precision);
    EXPECT_FALSE(precision.integer_activations());
  }
  EXPECT_TRUE(Precision::kW3.quantised());
  EXPECT_FALSE(Precision::kBf16.quantised());
}

// A value of one axis that no precision uses would be a row that nothing can reach.
TEST(Precision, EveryStorageHasAWeightOnlyPrecision) {
  std::set<WeightStorage> reached;
  for (const Precision precision : kPrecisions) {
    reached.insert(precision.weights);
    EXPECT_LT(index_of(weight_only(precision)), kPrecisions.size());
  }
  EXPECT_EQ(reached.size(), kWeightStorages.size());
}

}  // namespace
}  // namespace protean
