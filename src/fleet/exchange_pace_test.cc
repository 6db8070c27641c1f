#include "fleet/exchange_pace.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

// A step of 100 ns ends at 1'000.
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

TEST(ExchangePace, LayersMoveForAsLongAsAStepTakes) {
  ExchangePace pace = after_a_step();
  pace.committed(1, false, 2'000);
  pace.morph_done(2'020);
  EXPECT_EQ(pace.layers(8, true), 5);
  EXPECT_EQ(pace.layers(3, true), 3);
  pace.committed(5, false, 3'000);
  pace.morph_done(3'250);
  EXPECT_EQ(pace.layers(8, true), 2) << "50 ns a layer";
  pace.committed(2, false, 4'000);
  pace.morph_done(5'000);
  EXPECT_EQ(pace.layers(8, true), 1) << "a layer takes longer than a step";
}

TEST(ExchangePace, StepsBeforeTheExchangeDoNotCount) {
  ExchangePace pace = after_a_step();
  pace.step_begun(2'000);
  pace.committed(1, true, 2'010);
  pace.step_done(2'100);
  pace.morph_done(2'125);
  EXPECT_EQ(pace.layers(8, true), 4);
}

TEST(ExchangePace, AStepThatComesWhileLayersMoveDoesNotShortenTheirTime) {
  ExchangePace pace = after_a_step();
  pace.committed(1, false, 2'000);
  pace.step_begun(2'040);
  pace.morph_done(2'050);
  EXPECT_EQ(pace.layers(8, true), 2);
}

TEST(ExchangePace, TimeWithoutAStepAndStepsThatMoveNoKvDoNotCount) {
  ExchangePace pace = after_a_step();
  pace.committed(1, false, 2'000);
  pace.morph_done(2'050);
  pace.step_begun(9'000);
  pace.step_done(9'200);
  EXPECT_EQ(pace.layers(8, true), 4);
  pace.committed(0, false, 9'500);
  pace.morph_done(9'900);
  EXPECT_EQ(pace.layers(8, true), 4);
}

}  // namespace
}  // namespace protean
