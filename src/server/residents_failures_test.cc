// Tests how models leave devices that have failed.

#include <memory>
#include <string>
#include <variant>
#include <vector>

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

TEST_F(LostDevicesTest, AModelWithAnIntentIsPlacedAnewAndItsRequestsWaitForThat) {
  serve_for_an_intent();
  EXPECT_FALSE(loader.requests_wait);
  begin();
  lose_devices();
  EXPECT_TRUE(residents.models().in_service()) << "it is placed anew at the next look";
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"lose 0", "replace 0 min-cost"}));
  EXPECT_TRUE(loader.requests_wait);
  EXPECT_EQ(loader.why, "has lost memory");
  EXPECT_EQ(serving().residence(), Residence::kFallingAsleep);
  EXPECT_EQ(change("way"), "placed anew");
  EXPECT_EQ(change("way_why"), "a device has lost memory");
  EXPECT_TRUE(residents.models().in_service()) << "its requests are answered";
  residents.fell_asleep(0);
  EXPECT_EQ(loader.take(), Asked{"load 0"}) << "once it has a place";
  EXPECT_EQ(serving().residence(), Residence::kWaking);
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{}) << "once is enough";

  begin();
  residents.changes(0, {.why = "device 0 has lost memory", .placed_anew = true});
  EXPECT_EQ(change(), "planning");
  EXPECT_EQ(std::get<ApiError>(residents.take_back_intent(serving())).status, 409)
      << "requests wait for it";
  residents.planned(0, {"TP 1 x PP 1, bf16, KV bf16", estimates});
  EXPECT_EQ(change(), "loading");
  residents.succeeded(0, serving().model());
  EXPECT_EQ(change(), "loading");
  EXPECT_TRUE(std::holds_alternative<ApiError>(residents.take_back_intent(serving())));
  EXPECT_EQ(serving().outstanding(), 2);
  residents.woke(0, {});
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(change("way"), "placed anew");
  EXPECT_EQ(change("way_why"), "device 0 has lost memory");
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{}) << "its devices work";
  EXPECT_EQ(serving().residence(), Residence::kAwake);
  EXPECT_EQ(end_all(first_inbox, serving()), 2U);
}

TEST_F(LostDevicesTest, AModelIsPlacedAnewWhileTheServerDrains) {
  serve_for_an_intent();
  begin();
  residents.models().set_state(ServerState::kDraining);
  lose_devices();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"lose 0", "replace 0 min-cost"})) << "its requests end first";
}

TEST_F(LostDevicesTest, AModelWithoutRequestsIsNotPlacedAnewWhileTheServerDrains) {
  serve_for_an_intent();
  residents.models().set_state(ServerState::kDraining);
  lose_devices();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{});
}

TEST_F(LostDevicesTest, ACopyThatComesWhileTheServerDrainsEndsItsChange) {
  serve_for_an_intent();
  begin();
  want(R"({"intent":"min-latency"})");
  residents.planned(0, {"TP 2 x PP 1, bf16, KV bf16", estimates});
  residents.models().set_state(ServerState::kDraining);
  residents.replaced(0, make_host(next_inbox, "min-latency"), true);
  EXPECT_EQ(change(), "failed");
  EXPECT_EQ(change("error"), "the server drains");
  loader.take();
  lose_devices();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"lose 0", "replace 0 min-cost"}))
      << "nothing is left that its requests would wait for";
}

TEST_F(LostDevicesTest, DevicesThatFailBeforeTheModelIsKnownToBeAwakeAreNotForgotten) {
  serve_for_an_intent();
  lose_devices(now_ns);
  residents.look_at_loads();
  residents.fell_asleep(0);
  residents.succeeded(0, serving().model());
  EXPECT_EQ(serving().failure(), nullptr);
  now_ns += kNsPerS;
  lose_devices(now_ns);  // of the new engines
  residents.woke(0, {});
  loader.take();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"lose 0", "replace 0 min-cost"}));
}

TEST_F(LostDevicesTest, AChangeThatWasPlannedWithTheDevicesGivesWayToAPlanWithoutThem) {
  serve_for_an_intent();
  want(R"({"intent":"min-latency","batch":3})");
  lose_devices();
  residents.look_at_loads();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-latency", "take back replace 0"}));
  EXPECT_EQ(serving().residence(), Residence::kAwake) << "that change may still end well";
  EXPECT_TRUE(residents.models().in_service());
  residents.not_replaced(0, withdrawn());
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"lose 0", "replace 0 min-latency"}));
  EXPECT_EQ(loader.wanted[0], 3);
  EXPECT_EQ(change("way"), "placed anew");
}

TEST_F(LostDevicesTest, EnginesThatTakeOverFromOnesThatHaveFailedPutTheModelBackInService) {
  serve_for_an_intent();
  begin();
  want(R"({"intent":"min-latency","batch":3})");
  hand_over();
  lose_devices();
  residents.look_at_loads();
  serving().deliver({.groups = std::make_shared<GroupsStatus>()});
  EXPECT_EQ(serving().failure(), nullptr);
  EXPECT_EQ(serving().fleet().groups(), nullptr) << "one replica has no groups to show";
  residents.succeeded(0, on_two_devices());
  loader.take();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{});
  EXPECT_EQ(change("way"), "handed over");
  lose_devices();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"lose 0", "replace 0 min-latency"}));
  EXPECT_EQ(loader.wanted[0], 0) << "the wish of a change that has ended well is over";
  EXPECT_EQ(end_all(first_inbox, serving()), 1U);
}

TEST_F(LostDevicesTest, AModelThatIsHandedOverOnADeviceThatHasFailedIsPlannedAgain) {
  serve_for_an_intent();
  want(R"({"intent":"min-latency","batch":3})");
  hand_over();
  loader.take();
  residents.succeeded(0, on_two_devices(), true);
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-latency"}) << "it has no other failure to wait for";
  EXPECT_EQ(loader.wanted[0], 3);
  EXPECT_FALSE(loader.requests_wait) << "they are answered meanwhile";
  EXPECT_EQ(change(), "planning");
  EXPECT_EQ(serving().model().max_model_len, 50);
  EXPECT_TRUE(std::holds_alternative<ApiError>(residents.take_back_intent(serving())))
      << "nothing else would have it leave the device";
  residents.not_replaced(0, {ErrorCode::kUnavailable, "no other device"});
  EXPECT_EQ(change("error"), "no other device");
  EXPECT_EQ(loader.take(), Asked{}) << "it stays";
}

TEST_F(LostDevicesTest, AModelThatMustLeaveADeviceIsNotPlannedAgainOnceItIsRemoved) {
  serve_for_an_intent();
  deploy_other();
  want(R"({"intent":"min-latency"})");
  hand_over();
  residents.succeeded(0, on_two_devices(), true);
  loader.take();
  residents.remove(serving());
  EXPECT_EQ(loader.take(), (Asked{"take back replace 0", "remove 0"}));
}

TEST_F(LostDevicesTest, AMoveFromADeviceThatHasFailedIsPlannedAgainAndIsNoMove) {
  serve_for_an_intent();
  loader.move = ModelLoader::ModelToMove{
      0, {.intent = "min-cost", .move = PlannedMove{.devices = {1}, .why = "others are busy"}}};
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-cost"});
  hand_over();
  EXPECT_EQ(change("why"), "others are busy");
  EXPECT_EQ(change("configuration"), "TP 2 x PP 1, bf16, KV bf16");
  residents.changes(0, {.planned_again = true});
  EXPECT_EQ(change(), "planning");
  EXPECT_EQ(change("why"), "") << "its devices are not taken";
  EXPECT_EQ(change("configuration"), "");
  EXPECT_EQ(change("way"), "");
  hand_over();
  residents.succeeded(0, on_two_devices());
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(residents.intent_of(serving()).at("moves"), 0);
}

TEST_F(LostDevicesTest, AModelWhoseServerDrainsStaysWhereItWasHandedOver) {
  serve_for_an_intent();
  want(R"({"intent":"min-latency"})");
  hand_over();
  loader.take();
  residents.models().set_state(ServerState::kDraining);
  residents.succeeded(0, on_two_devices(), true);
  EXPECT_EQ(loader.take(), Asked{});
  EXPECT_EQ(change(), "done");
}

TEST_F(LostDevicesTest, AModelThatIsRemovedWhileItIsPlacedAnewEndsItsRequestsFirst) {
  serve_for_an_intent();
  deploy_other();
  begin();
  Service& removed = serving();
  lose_devices();
  residents.look_at_loads();
  residents.fell_asleep(0);
  residents.planned(0, {"TP 1 x PP 1, bf16, KV bf16", estimates});
  residents.succeeded(0, removed.model());
  loader.take();
  residents.remove(removed);
  EXPECT_EQ(loader.take(), Asked{}) << "it is loaded for them";
  EXPECT_FALSE(residents.intent_of(removed).contains("change"))
      << "a model that takes its name has none";
  EXPECT_EQ(loader.left, std::vector<std::size_t>{0});
  residents.woke(0, {});
  EXPECT_EQ(end_all(first_inbox, removed), 1U);
}

TEST_F(LostDevicesTest, WithoutAPlaceRequestsEndWithTheReason) {
  serve_for_an_intent();
  begin();
  lose_devices();
  residents.look_at_loads();
  residents.fell_asleep(0);
  begin();
  const Error none{ErrorCode::kUnavailable, "all devices (1) have failed"};
  Finished begun = finished(RequestId{1}, FinishReason::kFailed, 2);
  begun.failure = none.message;
  residents.woke(0, none, {begun});
  residents.not_replaced(0, none);
  EXPECT_EQ(serving().outstanding(), 0);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0]->failure()->message, "the answer failed: all devices (1) have failed");
  EXPECT_EQ(answers[1]->failure()->status, 503) << "it was not accepted before";
  EXPECT_FALSE(residents.models().in_service());
  EXPECT_EQ(change(), "failed");
  EXPECT_EQ(change("error"), none.message);
  loader.take();
  want(R"({"intent":"min-memory"})");
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-memory"}) << "an operator may try again";
}

TEST_F(LostDevicesTest, AnOperatorTakesBackAWishForAModelWithoutAPlace) {
  serve_for_an_intent();
  lose_devices();
  residents.look_at_loads();
  residents.fell_asleep(0);
  const Error none{ErrorCode::kUnavailable, "all devices (1) have failed"};
  residents.woke(0, none);
  residents.not_replaced(0, none);
  loader.take();
  want(R"({"intent":"min-memory"})");
  EXPECT_FALSE(loader.requests_wait) << "requests that come meanwhile are refused";
  residents.changes(0, {.why = "device 0 has lost memory", .placed_anew = true});
  EXPECT_TRUE(std::holds_alternative<boost::json::object>(residents.take_back_intent(serving())));
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-memory", "take back replace 0"}));
  residents.not_replaced(0, withdrawn());
  EXPECT_EQ(change(), "cancelled");
  EXPECT_EQ(serving().outstanding(), 0);
  want(R"({"intent":"min-memory"})");
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-memory"});
}

TEST_F(LostDevicesTest, AChangeFailsIfTheModelCannotBeLoadedInItsPlace) {
  serve_for_an_intent();
  begin();
  lose_devices();
  residents.look_at_loads();
  residents.fell_asleep(0);
  residents.planned(0, {"TP 1 x PP 1, bf16, KV bf16", estimates});
  residents.succeeded(0, serving().model());
  residents.woke(0, make_error(ErrorCode::kExhausted, "no memory"));
  EXPECT_EQ(change(), "failed");
  EXPECT_EQ(change("error"), "no memory");
  EXPECT_EQ(serving().outstanding(), 0);
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
