#include "engine/engine_state.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/morph_scene_for_test.h"

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
  const EngineState all = join_homes(std::move(homes), HomeBlocks(2, 10));
  EXPECT_GT(all.times->lengths().mean(), 400);
}

// As if a group cannot be divided: devices would rest, and gauges show nothing for a while.
TEST_F(EngineMorph, RequestsThatComeBackAreNotToldToHaveLeft) {
  send(Arrival{request(1, 4, 4)});
  engine.hold_steps();
  end_step();
  ASSERT_TRUE(engine.quiet());
  ASSERT_EQ(sink.observation.running, 1);
  EngineState state = engine.release_all(++now_ns);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(sink.observation.running, 1);
  engine.absorb(std::move(state), ++now_ns);
  EXPECT_EQ(sink.observation.running, 1);
  engine.go_on(++now_ns);
  settle();
  EXPECT_EQ(sink.all<Finished>().size(), 1U);
}

}  // namespace
}  // namespace protean
