// Tests which failed deployments a server shows.

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "server/residents.h"
#include "server/test_scenes/residents_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

TEST_F(ResidentsTest, DeploymentsThatFailedAreBoundedAndCanBeRemoved) {
  const auto status_of = [](const Checked<std::string>& reply) {
    const ApiError* error = std::get_if<ApiError>(&reply);
    return error == nullptr ? 200 : error->status;
  };
  EXPECT_EQ(status_of(residents.deploy(R"({"name":"a\nb"})")), 400);
  EXPECT_EQ(
      status_of(residents.deploy(json::serialize(json::object{{"name", std::string(1'000, 'x')}}))),
      400);
  EXPECT_EQ(loader.take(), Asked{});
  EXPECT_FALSE(residents.take_back("b"));
  EXPECT_EQ(status_of(residents.deploy(R"({"name":"b"})")), 200);
  residents.failed("b", {ErrorCode::kNotFound, "no such model"});
  EXPECT_EQ(residents.absent().size(), 1U);
  EXPECT_EQ(residents.take_back("b"), "removed");
  EXPECT_EQ(residents.absent().size(), 0U);
  for (int i = 0; i < 100; ++i) {
    const std::string name = "model-" + std::to_string(i);
    ASSERT_EQ(status_of(residents.deploy(json::serialize(json::object{{"name", name}}))), 200);
    residents.failed(name, {ErrorCode::kNotFound, "no such model"});
  }
  EXPECT_EQ(residents.absent().size(), 32U);
}

TEST_F(ResidentsTest, TheFailedDeploymentThatIsForgottenIsTheOldest) {
  const auto fail = [&](const std::string& name) {
    residents.deploy(json::serialize(json::object{{"name", name}}));
    residents.failed(name, {ErrorCode::kNotFound, "no such model"});
  };
  const auto is_shown = [&](std::string_view name) {
    const json::array absent = residents.absent();
    return std::any_of(absent.begin(), absent.end(),
                       [&](const json::value& one) { return one.at("model").as_string() == name; });
  };
  residents.deploy(R"({"name":"begun"})");
  fail("z");
  for (int i = 0; i < 31; ++i) {
    fail("m" + std::to_string(i));
  }
  EXPECT_TRUE(is_shown("z"));
  fail("a");
  EXPECT_FALSE(is_shown("z")) << "32 have failed later";
  EXPECT_TRUE(is_shown("a"));
  EXPECT_TRUE(is_shown("begun"));
  deploy_other();
  residents.deploy(R"({"name":"taken"})");
  ServedModel other = model();
  other.names = {"taken", "other"};
  residents.deployed(
      std::make_shared<Host>(HostedModel{other, {}, other_inbox, nullptr}, "9.9", environment(),
                             [](std::shared_ptr<Host>, OutputBatch) {}),
      true);
  EXPECT_TRUE(is_shown("taken"));
  EXPECT_FALSE(is_shown("m0")) << "a name that another model has taken is a failure too";
  EXPECT_EQ(residents.absent().size(), 33U) << "and one that is under way";
}

}  // namespace
}  // namespace protean
