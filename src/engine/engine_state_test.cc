#include "engine/engine_state.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace protean {
namespace {

// A home that has served nothing knows only a first guess of the length of answers.
TEST(EngineState, AGroupKnowsWhatTheHomeWithMostAnswersKnows) {
  std::vector<EngineState> homes(2);
  for (EngineState& home : homes) {
    home.times.emplace(StepSpeed(StepCost{}, 512), StepPrecision{});
  }
  for (int answer = 0; answer < 50; ++answer) {
    homes[1].times->answer_done(10, 500);
  }
  const EngineState all = join_homes(std::move(homes));
  EXPECT_GT(all.times->lengths().mean(), 400);
}

}  // namespace
}  // namespace protean
