#include "control/answer_lengths.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

constexpr int kUnbounded = 1 << 20;

TEST(AnswerLengths, WithoutExperienceAnAnswerGoesOnAsLongAsItDid) {
  const AnswerLengths lengths;
  EXPECT_EQ(lengths.expected_left(0, kUnbounded), 128);
  EXPECT_EQ(lengths.expected_left(1000, kUnbounded), 1000);
  EXPECT_EQ(lengths.expected_left(1000, 1010), 10) << "but not beyond its bound";
}

TEST(AnswerLengths, LearnsADistributionAndNotAMean) {
  AnswerLengths lengths;
  for (int i = 0; i < 200; ++i) {
    lengths.done(50, i % 2 == 0 ? 20 : 400);
  }
  EXPECT_NEAR(lengths.mean(), 210, 10);
  EXPECT_NEAR(lengths.expected_left(100, kUnbounded), 300, 20) << "the short ones have ended";
  EXPECT_NEAR(lengths.expected_left(0, 100), 60, 5) << "half end at 20, half at their bound";
  EXPECT_EQ(lengths.expected_left(2000, kUnbounded), 2000) << "longer than any before";
}

// As many answers are short as long, but nearly all that run are long ones.
TEST(AnswerLengths, RunningSequencesAreThoseThatRunForLong) {
  AnswerLengths lengths;
  for (int i = 0; i < 200; ++i) {
    i % 2 == 0 ? lengths.done(8, 1) : lengths.done(300, 100);
  }
  EXPECT_NEAR(lengths.running_prompt_tokens(154), 297, 10);
  EXPECT_NEAR(lengths.running_drawn_tokens(), 50, 3);
}

TEST(AnswerLengths, ForgetsOldAnswers) {
  AnswerLengths lengths;
  for (int i = 0; i < 3000; ++i) {
    lengths.done(50, i < 1000 ? 1000 : 10);
  }
  EXPECT_LT(lengths.mean(), 40);
}

}  // namespace
}  // namespace protean
