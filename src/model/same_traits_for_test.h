#pragma once

#include <gtest/gtest.h>

#include "contract/model_spec.h"

namespace protean {

inline void expect_same_rope(const RopeSpec& read, const RopeSpec& written) {
  EXPECT_EQ(read.theta, written.theta);
  EXPECT_EQ(read.rotated, written.rotated);
  EXPECT_EQ(read.scaling, written.scaling);
  EXPECT_EQ(read.factor, written.factor);
  EXPECT_NEAR(read.magnitude, written.magnitude, 1e-6);
  EXPECT_EQ(read.divisors, written.divisors);
  EXPECT_EQ(read.long_divisors, written.long_divisors);
}

inline void expect_same_family_traits(const ModelSpec& read, const ModelSpec& written) {
  EXPECT_EQ(read.attention.windowed, written.attention.windowed);
  EXPECT_EQ(read.attention.rotated, written.attention.rotated);
  EXPECT_EQ(read.attention.qk_norm_over_heads, written.attention.qk_norm_over_heads);
  EXPECT_FLOAT_EQ(read.attention.scale, written.attention.scale);
  EXPECT_EQ(read.attention.score_cap, written.attention.score_cap);
  EXPECT_EQ(read.mlp, written.mlp);
  EXPECT_EQ(read.norms, written.norms);
  EXPECT_FLOAT_EQ(read.multipliers.embedding, written.multipliers.embedding);
  EXPECT_FLOAT_EQ(read.multipliers.residual, written.multipliers.residual);
  EXPECT_FLOAT_EQ(read.multipliers.logits, written.multipliers.logits);
  EXPECT_EQ(read.multipliers.logit_cap, written.multipliers.logit_cap);
  EXPECT_EQ(read.parallel_halves, written.parallel_halves);
  EXPECT_EQ(read.learned_positions, written.learned_positions);
  EXPECT_EQ(read.output_bias, written.output_bias);
  expect_same_rope(read.rope, written.rope);
  ASSERT_EQ(read.windowed_rope.has_value(), written.windowed_rope.has_value());
  if (read.windowed_rope) {
    expect_same_rope(*read.windowed_rope, *written.windowed_rope);
  }
}

}  // namespace protean
