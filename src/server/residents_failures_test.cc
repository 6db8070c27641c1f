// Tests how models leave devices that have failed.

#include <memory>
#include <string>

#include "server/residents.h"
#include "server/test_scenes/residents_for_test.h"

namespace protean {
namespace {

struct LostDevicesTest : ResidentsTest {
  // The model is served for an intent from now on.
  void serve_for_an_intent() {
    want(R"({"intent":"min-cost"})");
    residents.kept(0);
    loader.take();
  }
};

TEST_F(LostDevicesTest, AModelWithAnIntentIsPlacedAnewAndNewRequestsWaitForThat) {
  serve_for_an_intent();
  Service& former = serving();
  lose_devices();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"lose 0", "replace 0 min-cost"}));
  EXPECT_EQ(loader.why, "has lost memory");
  EXPECT_EQ(former.residence(), Residence::kFallingAsleep);
  residents.fell_asleep(0);
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{}) << "once is enough";

  begin();
  EXPECT_EQ(loader.take(), Asked{"load 0"});
  EXPECT_EQ(former.outstanding(), 1);
  residents.woke(0, make_error(ErrorCode::kUnavailable, "device 0 has lost memory"));
  EXPECT_EQ(former.outstanding(), 0) << "it does not come back on this device";
  residents.planned(0, {"TP 1 x PP 1, bf16, KV bf16", estimates});
  residents.changes(0, {std::nullopt, "device 0 has lost memory"});
  EXPECT_EQ(change("way_why"), "device 0 has lost memory");
  residents.replaced(0, make_host(next_inbox, "min-cost"), false);
  ASSERT_NE(&serving(), &former);
  answers.clear();
  begin();
  look_until_asked();
  EXPECT_EQ(loader.take(), (Asked{"remove 0", "load 1"}));
  residents.woke(1, {});
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(serving().residence(), Residence::kAwake);
  EXPECT_EQ(end_all(next_inbox, serving()), 1U);
}

TEST_F(LostDevicesTest, AMorphOfEnginesThatHaveFailedGivesWayToAPlanForItsIntent) {
  serve_for_an_intent();
  morph();
  serving().deliver({.outputs = {WishAnswered{asked_wish(), Morph{}}}});
  show(Precision::kBf16, Precision::kW8);
  loader.take();
  lose_devices();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"forget replace 0", "lose 0", "replace 0 min-memory"}));
  EXPECT_EQ(change(), "planning");
}

TEST_F(LostDevicesTest, AModelWithoutAnIntentOrWhoseIntentLoadsASecondCopyStaysAsItIs) {
  lose_devices();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{});
  want(R"({"intent":"min-cost"})");
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-cost"}) << "what it plans takes the model's place";
  EXPECT_EQ(serving().residence(), Residence::kAwake);
}

}  // namespace
}  // namespace protean
