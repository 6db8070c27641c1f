// Tests how operators take back what they have asked the loader for.

#include <boost/json/serialize.hpp>
#include <string>
#include <variant>

#include "server/residents.h"
#include "server/test_scenes/residents_for_test.h"

namespace protean {
namespace {

Error taken_back_by_operator() {
  return {ErrorCode::kUnavailable, "an operator took it back"};
}

std::string residence_of_absent(const Residents& residents) {
  const boost::json::array absent = residents.absent();
  return absent.empty() ? "" : std::string(absent.at(0).at("residence").as_string());
}

TEST_F(ResidentsTest, ADeploymentIsTakenBackAndItsNameIsFreeAfterwards) {
  const std::string body = R"({"name":"b"})";
  residents.deploy(body);
  EXPECT_EQ(residents.take_back("b"), "leaving");
  EXPECT_EQ(residents.take_back("b"), "leaving");
  EXPECT_EQ(loader.take(), (Asked{"deploy b", "take back b"})) << "once is enough";
  EXPECT_EQ(residence_of_absent(residents), "leaving");
  EXPECT_EQ(std::get<ApiError>(residents.deploy(body)).status, 409) << "it has not ended";
  residents.failed("b", taken_back_by_operator());
  EXPECT_EQ(residents.absent().size(), 0U);
  EXPECT_FALSE(residents.take_back("b"));
  EXPECT_TRUE(std::holds_alternative<std::string>(residents.deploy(body)));
}

TEST_F(ResidentsTest, AModelThatIsLoadedBeforeItsDeploymentIsTakenBackGoesAgain) {
  residents.deploy(R"({"name":"other"})");
  residents.take_back("other");
  loader.take();
  deploy_other();
  EXPECT_EQ(loader.take(), Asked{"remove 1"});
  EXPECT_EQ(residents.models().services().size(), 1U);
  EXPECT_EQ(residents.absent().size(), 0U);
}

TEST_F(ResidentsTest, AChangeOfIntentIsTakenBackBeforeAnotherConfigurationServes) {
  EXPECT_EQ(std::get<ApiError>(residents.take_back_intent(serving())).status, 409);
  want(R"({"intent":"min-cost"})");
  EXPECT_TRUE(std::holds_alternative<boost::json::object>(residents.take_back_intent(serving())));
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-cost", "take back replace 0"}));
  EXPECT_EQ(change(), "planning") << "it has not ended";
  residents.not_replaced(0, taken_back_by_operator());
  EXPECT_EQ(change(), "cancelled");
  EXPECT_EQ(change("error"), "");
  morph();
  EXPECT_EQ(change(), "morphing") << "a change may follow one that was taken back";
  EXPECT_EQ(std::get<ApiError>(residents.take_back_intent(serving())).status, 409);
}

TEST_F(ResidentsTest, AnIntentThatIsTakenBackAfterItsPlanChangesNothing) {
  Service& former = serving();
  want(R"({"intent":"min-memory"})");
  residents.planned(0, {"TP 1 x PP 1, w8, KV bf16", estimates});
  residents.take_back_intent(former);
  residents.changes(0, {FormWish{.rest_pages = 100}, "only weights change"});
  EXPECT_EQ(change(), "cancelled");
  EXPECT_EQ(asked_wish(), 0U) << "the engine is not asked to morph";
  want(R"({"intent":"min-latency"})");
  residents.planned(0, {"TP 2 x PP 1, bf16, KV bf16", estimates});
  residents.take_back_intent(former);
  loader.take();
  residents.replaced(0, make_host(next_inbox), true);
  EXPECT_EQ(change(), "cancelled");
  EXPECT_EQ(loader.take(), Asked{"remove 1"});
  EXPECT_EQ(&serving(), &former);
}

TEST_F(ResidentsTest, AChangeThatIsTakenBackAfterRequestsWereHandedOverIsDone) {
  want(R"({"intent":"min-latency"})");
  hand_over();
  EXPECT_TRUE(std::holds_alternative<boost::json::object>(residents.take_back_intent(serving())));
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-latency", "take back replace 0"}));
  residents.succeeded(0, on_two_devices());
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(serving().model().max_model_len, 50);
}

TEST_F(ResidentsTest, AProfileIsTakenBackByItselfOrWithItsModel) {
  EXPECT_EQ(std::get<ApiError>(residents.take_back_profile(serving())).status, 409);
  residents.profile(serving());
  EXPECT_EQ(std::get<boost::json::object>(residents.take_back_profile(serving())).at("state"),
            "waiting");
  residents.profiled(0, taken_back_by_operator());
  const boost::json::object ended = residents.profile_of(serving());
  EXPECT_EQ(ended.at("state"), "cancelled");
  EXPECT_FALSE(ended.contains("error"));
  EXPECT_EQ(loader.take(), (Asked{"profile 0", "take back profile 0"}));
  residents.profile(serving());
  deploy_other();
  residents.remove(serving());
  EXPECT_EQ(loader.take(), (Asked{"profile 0", "take back profile 0", "remove 0"}));
}

}  // namespace
}  // namespace protean
