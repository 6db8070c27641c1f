#include "device/cpu/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "device/cpu/every_target_for_test.h"

namespace protean::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Softmax : public EveryTarget {};

TEST_P(Softmax, AgreesWithDoublePrecision) {
  for (const std::int64_t size : {1, 2, 7, 15, 16, 17, 1023, 1024, 1025, 5003}) {
    std::vector<float> logits = random_floats(size);
    for (float& logit : logits) {
      logit *= 12.0f;
    }
    for (const float scale : {1.0f, 0.5f, 3.0f}) {
      for (const float least : {0.0f, 1e-3f}) {
        const SoftmaxWeights softmax{*std::max_element(logits.begin(), logits.end()), scale, least};
        std::vector<float> weights(logits.size(), -1.0f);
        softmax.compute(logits, weights);
        std::vector<double> sums(softmax_blocks(logits.size()), -1.0);
        softmax.sum(logits, sums);
        std::vector<double> of_weights(sums.size());
        for (std::size_t i = 0; i < logits.size(); ++i) {
          const double exact = std::exp((double{logits[i]} - softmax.top) * scale);
          if (std::abs(exact - least) > 1e-5 * exact && exact > 1e-36) {
            // The exponent has an error of |x| * 2^-24 from its subtraction in f32.
            ASSERT_NEAR(weights[i], exact >= least ? exact : 0.0,
                        exact * (2e-7 + 1.2e-7 * std::abs(std::log(exact))))
                << i << " of " << size;
          }
          of_weights[i / kSumBlock] += double{weights[i]};
        }
        for (std::size_t i = 0; i < sums.size(); ++i) {
          ASSERT_NEAR(sums[i], of_weights[i], 1e-13 * of_weights[i]);
        }
        EXPECT_EQ(softmax.total(logits), std::accumulate(sums.begin(), sums.end(), 0.0));
      }
    }
  }
}

TEST_P(Softmax, WeighsInfinitiesAndNans) {
  std::vector<float> logits(40, 0.0f);
  logits[1] = kNan;
  logits[2] = -kInf;
  logits[3] = kInf;
  logits[39] = kInf;
  std::vector<float> weights(logits.size());
  SoftmaxWeights{.top = kInf}.compute(logits, weights);
  double sum = 0;
  SoftmaxWeights{.top = kInf}.sum(logits, std::span(&sum, 1));
  EXPECT_EQ(sum, 2.0);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    EXPECT_EQ(weights[i], logits[i] == kInf ? 1.0f : 0.0f) << i;
  }
  logits[3] = logits[39] = -1.0f;
  SoftmaxWeights{.top = 0.0f}.compute(logits, weights);
  EXPECT_EQ(weights[0], 1.0f);
  EXPECT_EQ(weights[1], 0.0f);
  EXPECT_EQ(weights[2], 0.0f);
  EXPECT_NEAR(weights[39], std::exp(-1.0), 1e-7);
}

PROTEAN_ON_EVERY_TARGET(Softmax);

}  // namespace
}  // namespace protean::cpu
