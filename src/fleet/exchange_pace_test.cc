#include "fleet/exchange_pace.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

// A step has ended.
ExchangePace after_a_step() {
  ExchangePace pace;
  pace.step_begun(900);
  pace.step_done(1'000);
  return pace;
}

TEST(ExchangePace, WithoutStepsNothingWaits) {
  ExchangePace pace = after_a_step();
  EXPECT_EQ(pace.layers(8, false), 8);
  pace.committed(8, false, 2'000);
  pace.morph_done(1'000'000);
  EXPECT_EQ(pace.layers(8, false), 8);
}

TEST(ExchangePace, TheFirstLayerMovesAlone) {
  EXPECT_EQ(ExchangePace().layers(8, true), 1);
  EXPECT_EQ(after_a_step().layers(8, true), 1);
}

TEST(ExchangePace, LayersMoveForAsLongAsAStepMayTake) {
  ExchangePace pace = after_a_step();
  pace.committed(1, false, kNsPerS);
  pace.morph_done(kNsPerS + kNsPerS / 20);
  EXPECT_EQ(pace.layers(8, true), 5) << "0.05 s a layer, 0.25 s a step";
  EXPECT_EQ(pace.layers(3, true), 3);
  pace.committed(5, false, 2 * kNsPerS);
  pace.morph_done(2 * kNsPerS + kNsPerS / 2);
  EXPECT_EQ(pace.layers(8, true), 2) << "0.1 s a layer";
  pace.committed(2, false, 3 * kNsPerS);
  pace.morph_done(4 * kNsPerS);
  EXPECT_EQ(pace.layers(8, true), 1) << "a layer takes longer than a step may";
}

TEST(ExchangePace, StepsBeforeTheExchangeDoNotCount) {
  ExchangePace pace = after_a_step();
  pace.step_begun(kNsPerS);
  pace.committed(1, true, kNsPerS + kNsPerS / 100);
  pace.step_done(2 * kNsPerS);
  pace.morph_done(2 * kNsPerS + kNsPerS / 16);
  EXPECT_EQ(pace.layers(8, true), 4);
}

TEST(ExchangePace, AStepThatComesWhileLayersMoveDoesNotShortenTheirTime) {
  ExchangePace pace = after_a_step();
  pace.committed(1, false, kNsPerS);
  pace.step_begun(kNsPerS + kNsPerS / 10);
  pace.morph_done(kNsPerS + kNsPerS / 8);
  EXPECT_EQ(pace.layers(8, true), 2);
}

TEST(ExchangePace, StepsThatMoveNoKvDoNotCount) {
  ExchangePace pace = after_a_step();
  pace.committed(1, false, kNsPerS);
  pace.morph_done(kNsPerS + kNsPerS / 16);
  pace.committed(0, false, 2 * kNsPerS);
  pace.morph_done(3 * kNsPerS);
  EXPECT_EQ(pace.layers(8, true), 4);
}

}  // namespace
}  // namespace protean
