#include "replica/shared_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>

#include "replica/load_scene_for_test.h"

namespace protean {
namespace {

constexpr std::chrono::seconds kLong{9};  // less than the wait that a wake-up has to end

// Turns by a clock that stands still unless it is set, so that no wait ends by itself.
struct SharedTurnsTest : ReplicasTest {
  // A step of a device.
  void step(StepTurn& turn, TimeNs took_ns) {
    turn.begin();
    now_ns += took_ns;
    turn.end(0);
  }
  // Returns true if the device waits for its turn, and then until `ends` is called.
  bool waits_until(StepTurn& turn, const std::function<void()>& ends) {
    auto begun = std::async(std::launch::async, [&] { turn.begin(); });
    const bool waits = begun.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout;
    ends();
    const bool ended = begun.wait_for(kLong) == std::future_status::ready;
    turn.let_go();
    return waits && ended;
  }

  std::atomic<TimeNs> now_ns = kNsPerS;
  std::shared_ptr<SharedTurns> all =
      std::make_shared<SharedTurns>([this] { return now_ns.load(); });
  std::shared_ptr<ModelTurns> high = std::make_shared<ModelTurns>(all, 4);
  std::shared_ptr<ModelTurns> low = std::make_shared<ModelTurns>(all, 1);
};

TEST_F(SharedTurnsTest, AWaitEndsWhenTheOtherRestsOrLeavesOrHasNoHigherPriorityOrTheDeviceIsLetGo) {
  const std::unique_ptr<StepTurn> other = high->add({0, 1});
  std::unique_ptr<StepTurn> leaving = high->add({0});
  for (int way = 0; way < 4; ++way) {
    const std::unique_ptr<StepTurn> own = low->add({0});
    StepTurn& busy = way == 1 ? *leaving : *other;
    busy.want();
    step(*own, 1000 * kNsPerS);
    EXPECT_TRUE(waits_until(*own, [&] {
      if (way == 0) {
        other->rest();
      } else if (way == 1) {
        leaving.reset();
      } else if (way == 2) {
        low->set_priority(4);
      } else {
        own->let_go();
      }
    })) << way;
    other->rest();
    low->set_priority(1);
  }
}

TEST_F(SharedTurnsTest, ADeviceThatIsLetGoHoldsUpNoOther) {
  const std::unique_ptr<StepTurn> other = high->add({});
  const std::unique_ptr<StepTurn> own = low->add({0});
  other->want();
  other->begin();  // and hangs
  other->let_go();
  other->want();
  step(*own, kNsPerS);
  step(*own, kNsPerS);
  EXPECT_DOUBLE_EQ(high->step_seconds(), 0) << "a hang is no compute";
}

TEST_F(SharedTurnsTest, StepsOfDevicesThatLeftAreCountedAndNewOnesHaveTheirModelsPriority) {
  {
    const std::unique_ptr<StepTurn> one = low->add({0});
    const std::unique_ptr<StepTurn> two = low->add({1});
    step(*one, kNsPerS);
    step(*two, 2 * kNsPerS);
  }
  EXPECT_DOUBLE_EQ(low->step_seconds(), 3);
  low->set_priority(4);
  const std::unique_ptr<StepTurn> own = low->add({0});
  const std::unique_ptr<StepTurn> other = high->add({0});
  other->want();
  step(*own, kNsPerS);
  step(*own, kNsPerS);  // an equal one does not wait
  EXPECT_DOUBLE_EQ(low->step_seconds(), 5);
  EXPECT_DOUBLE_EQ(high->step_seconds(), 0);
}

// The clock goes on with each look at it.
TEST_F(SharedTurnsTest, ReplicasComputeAsEverAndLetOthersBeginWhenTheirRequestsHaveEnded) {
  FleetLoad alone(options_for({}), *this);
  alone.run(12, 6);
  all = std::make_shared<SharedTurns>([this] { return now_ns += kNsPerUs; });
  high = std::make_shared<ModelTurns>(all, 4);
  low = std::make_shared<ModelTurns>(all, 1);
  for (const int devices : {1, 2}) {
    ReplicaOptions options = options_for({.replicas = devices, .tensor = devices});
    options.turns = high;
    FleetLoad load(options, *this);
    load.run(12, 6);
    EXPECT_GT(high->step_seconds(), 0);
    if (devices == 1) {
      expect_same(load.answers, alone.answers);
    }
    const std::unique_ptr<StepTurn> own = low->add({});
    step(*own, kNsPerS);
    auto begun = std::async(std::launch::async, [&] { own->begin(); });
    EXPECT_EQ(begun.wait_for(kLong), std::future_status::ready) << devices << " devices each";
    own->let_go();
  }
}

// Another device has requests all the time.
TEST_F(SharedTurnsTest, ReplicasOfLowPriorityAnswerAsEver) {
  FleetLoad alone(options_for({}), *this);
  alone.run(3, 3);
  all = std::make_shared<SharedTurns>(steady_now_ns);
  high = std::make_shared<ModelTurns>(all, 4);
  low = std::make_shared<ModelTurns>(all, 1);
  const std::unique_ptr<StepTurn> busy = high->add({});
  busy->want();
  for (const int devices : {1, 2}) {
    ReplicaOptions options = options_for({.tensor = devices});
    options.turns = low;
    FleetLoad load(options, *this);
    load.run(3, 3);
    if (devices == 1) {
      expect_same(load.answers, alone.answers);
    }
  }
}

}  // namespace
}  // namespace protean
