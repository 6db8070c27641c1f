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
  lose_devices();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"lose 0", "replace 0 min-cost"}));
  EXPECT_EQ(loader.why, "has lost memory");
  EXPECT_EQ(serving().residence(), Residence::kFallingAsleep);
  residents.fell_asleep(0);
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{}) << "once is enough";

  begin();
  EXPECT_EQ(loader.take(), Asked{"load 0"});
  residents.planned(0, {"TP 1 x PP 1, bf16, KV bf16", estimates});
  residents.changes(0, {std::nullopt, "device 0 has lost memory"});
  EXPECT_EQ(change("way_why"), "device 0 has lost memory");
  residents.succeeded(0, serving().model());
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(serving().outstanding(), 1);
  residents.woke(0, {});
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{}) << "its devices work";
  EXPECT_EQ(serving().residence(), Residence::kAwake);
  EXPECT_EQ(end_all(first_inbox, serving()), 1U);
}

TEST_F(LostDevicesTest, WithoutAPlaceRequestsEndWithTheReason) {
  serve_for_an_intent();
  lose_devices();
  residents.look_at_loads();
  residents.fell_asleep(0);
  begin();
  const Error none{ErrorCode::kUnavailable, "all devices (1) have failed"};
  residents.woke(0, none);
  residents.not_replaced(0, none);
  EXPECT_EQ(serving().outstanding(), 0);
  EXPECT_EQ(change(), "failed");
  EXPECT_EQ(change("error"), none.message);
  loader.take();
  want(R"({"intent":"min-memory"})");
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-memory"}) << "an operator may try again";
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

TEST_F(LostDevicesTest, AModelThatIsLoadedAgainIsInService) {
  const auto out_of_service = [&] {
    const std::string metrics = Service::metrics_text({&serving()});
    return metrics.find("protean:replicas_out_of_service{model_name=\"tiny\"} 1") !=
           std::string::npos;
  };
  lose_devices();
  EXPECT_TRUE(out_of_service());
  ASSERT_TRUE(residents.put_to_sleep(serving()));
  residents.fell_asleep(0);
  serving().wake();
  residents.woke(0, {});
  EXPECT_FALSE(out_of_service());
  EXPECT_EQ(serving().failure(), nullptr);
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
