#include "server/llama/llama_properties.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>

#include "server/test_scenes/service_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

using LlamaProperties = ServiceTest;

TEST_F(LlamaProperties, DescribeTheModelAndWhetherItSleeps) {
  const json::value props = json::parse(get("/props").body);
  EXPECT_EQ(props.at("model_alias"), "tiny");
  EXPECT_EQ(props.at("total_slots"), 4);
  EXPECT_EQ(props.at("default_generation_settings").at("n_ctx"), 100);
  EXPECT_EQ(props.at("default_generation_settings").at("params").at("temperature"), 0.25);
  EXPECT_EQ(props.at("is_sleeping"), false);
  EXPECT_EQ(get("/props?model=alias").status, 200);
  EXPECT_EQ(get("/props?model=other").status, 404);
  service.fall_asleep();
  service.fell_asleep();
  EXPECT_EQ(json::parse(get("/props").body).at("is_sleeping"), true);
}

TEST_F(LlamaProperties, SlotsAreTheRequestsInWork) {
  EXPECT_EQ(json::parse(get("/slots").body).as_array().size(), 1U);
  const auto generation = generate("/completion", R"({"prompt":"ab","n_predict":5})");
  const RequestId id = arrivals().at(0).id;
  deliver({Accepted{id}});
  tokens(id, "xy");
  const json::array slots = json::parse(get("/slots").body).as_array();
  ASSERT_EQ(slots.size(), 2U);
  EXPECT_EQ(slots[0].at("is_processing"), true);
  EXPECT_EQ(slots[0].at("next_token").at("n_decoded"), 2);
  EXPECT_EQ(slots[0].at("next_token").at("n_remain"), 3);
  EXPECT_EQ(slots[1].at("is_processing"), false);
  deliver({finished(id, FinishReason::kLength, 2)});
  EXPECT_EQ(json::parse(get("/slots").body).as_array().size(), 1U);
  const json::value answer = json::parse(generation->take_body());
  EXPECT_EQ(answer.at("content"), "xy");
  EXPECT_EQ(answer.at("stop_type"), "limit");
  EXPECT_EQ(answer.at("tokens_cached"), 2);
}

}  // namespace
}  // namespace protean
