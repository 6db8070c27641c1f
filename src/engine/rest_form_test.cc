#include <gtest/gtest.h>

#include "engine/morph_scene_for_test.h"

// Engines that an intent gives another form of quiet times, and pages for it.

namespace protean {
namespace {

constexpr std::int64_t kBlocksAtRest = 10;

struct RestForm : EngineMorph {
  explicit RestForm(const MorphConfig& config = morph_for_test(kBlocksAtRest))
      : EngineMorph(config) {}

  // The form and the pages that the model has with layers at a precision and as much KV as at
  // first.
  FormWish resting_at(Precision precision) const {
    Form form = morph.start;
    form.layer_precision = {{precision, precision}, {precision, precision}};
    return {.layers = form.layer_precision,
            .embeddings = form.embeddings,
            .rest_pages = device.pages_of(form) + morph.bounds.budget.reserve};
  }
  // Ends what is under way, and lets some decisions be made.
  void pass() {
    for (int i = 0; i < 20; ++i) {
      settle();
      now_ns += morph.decide_every_ns;
      send(Tick{});
    }
    settle();
  }
  void expect_at_rest(Precision precision) {
    const FormWish wished = resting_at(precision);
    EXPECT_EQ(device.form().layer_precision, wished.layers);
    EXPECT_EQ(device.form().kv.blocks, kBlocksAtRest);
    EXPECT_EQ(sink.form->pages.all, *wished.rest_pages)
        << "what the weights need less is given back";
    EXPECT_FALSE(sink.form->pinned);
  }
};

// The configuration of an engine that is loaded at w4, in place of one that went there.
MorphConfig loaded_at_w4() {
  MorphConfig config = morph_for_test(kBlocksAtRest);
  config.opened = config.start;
  config.opened.layer_precision[0].mlp = Precision::kW8;  // as in a file of several precisions
  config.start.layer_precision.assign(2, {Precision::kW4, Precision::kW4});
  config.bounds.full = config.start;
  PageBudget& budget = config.bounds.budget;
  budget.pages = form_pages(config.bounds.spec, config.start, budget.page_bytes) + budget.reserve;
  return config;
}

struct RestFormOnWaking : RestForm {
  RestFormOnWaking() : RestForm(loaded_at_w4()) {}
};

struct RestFormOfAPolicy : RestForm {
  RestFormOfAPolicy() : RestForm(morph_for_test(kBlocksAtRest, MorphMode::kBalanced)) {}
};

TEST_F(RestForm, IsReachedWhileARequestRunsAndFromThereTheWayBack) {
  send(Arrival{request(1, 20, 30)});
  ASSERT_TRUE(wish(resting_at(Precision::kW4)).ok());
  pass();
  expect_at_rest(Precision::kW4);
  ASSERT_EQ(sink.all<Finished>().size(), 1U);
  EXPECT_EQ(sink.all<Finished>().front().reason, FinishReason::kLength);
  const auto released = wish({.release = true});
  ASSERT_TRUE(released.ok());
  EXPECT_TRUE(released->steps.empty()) << "a release restores the form of quiet times";
  EXPECT_EQ(released->reason, "released by an operator: the form that an intent chose");
  send(Arrival{request(2, 20, 30)});
  ASSERT_TRUE(wish(resting_at(Precision::kBf16)).ok());
  pass();
  expect_at_rest(Precision::kBf16);
  EXPECT_EQ(device.form(), morph.start);
  EXPECT_EQ(sink.all<Finished>().size(), 2U);
  EXPECT_EQ(wish({.release = true})->reason, "released by an operator: the form as it was loaded");
}

TEST_F(RestForm, WithoutRoomTheFormAndThePagesStay) {
  FormWish small = resting_at(Precision::kW4);
  small.rest_pages = 3;
  EXPECT_FALSE(wish(small).ok());
  pass();
  expect_at_rest(Precision::kBf16);
}

TEST_F(RestForm, IsRefusedIfARequestThatWasAcceptedNeedsMoreKv) {
  send(Arrival{request(1, 40, 24)});  // 8 blocks
  FormWish less = resting_at(Precision::kW4);
  *less.rest_pages -= 4 * 2;  // a page for a block of each layer
  const auto refused = wish(less);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("a request that was accepted needs"), std::string::npos)
      << refused.error().message;
  pass();
  expect_at_rest(Precision::kBf16);
}

TEST_F(RestFormOfAPolicy, IsWhatThePolicyReturnsTo) {
  ASSERT_TRUE(wish(resting_at(Precision::kW4)).ok());
  for (int i = 0; i < 50; ++i) {
    pass();
  }
  expect_at_rest(Precision::kW4);
  ASSERT_TRUE(wish(resting_at(Precision::kBf16)).ok());
  pass();
  expect_at_rest(Precision::kBf16);
}

TEST_F(RestFormOnWaking, IsTheFirstOneAndWeightsGoBackToWhatTheyWereOpenedAt) {
  const auto again = wish(resting_at(Precision::kW4));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->steps.empty());
  pass();
  expect_at_rest(Precision::kW4);
  FormWish as_opened = resting_at(Precision::kBf16);
  as_opened.layers = morph.opened.layer_precision;
  ASSERT_TRUE(wish(as_opened).ok());
  pass();
  EXPECT_EQ(device.form().layer_precision, morph.opened.layer_precision);
  EXPECT_EQ(sink.form->pages.all, *as_opened.rest_pages);
}

}  // namespace
}  // namespace protean
