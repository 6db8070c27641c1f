#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/steering_scene_for_test.h"

// What the policy's wishes come to.

namespace protean {
namespace {

TEST_F(Steering, ABurstIsServedAtLowerPrecisionAndAllComesBack) {
  EXPECT_EQ(engine.next_deadline_ns(), std::nullopt);
  begin_burst();
  lower();
  settle();
  EXPECT_EQ(sink.all<Finished>().size(), 1U + 6U);
  EXPECT_NE(device.form(), morph.start);
  for (int i = 0; i < 10'000 && device.form() != morph.start; ++i) {  // nothing runs any more
    tick();
    settle();
  }
  EXPECT_EQ(device.form(), morph.start);
  EXPECT_EQ(sink.form->wanted, morph.start);
  EXPECT_GT(sink.form->swaps_down_total, 0);
  EXPECT_EQ(sink.form->swaps_up_total, sink.form->swaps_down_total);
  EXPECT_NE(sink.form->history->front()->reason.find("would be late"), std::string::npos);
  tick();
  EXPECT_EQ(engine.next_deadline_ns(), std::nullopt) << "who is at rest is left alone";
}

TEST_F(Steering, TellsWhatItPredictsForAllFormsThoughNoneCanBeBetter) {
  calm_down();
  now_ns += 2 * kNsPerS;
  send(Arrival{request(1, 4, 2)});
  settle();
  ASSERT_EQ(device.form(), morph.start);
  const auto& forms = sink.form->predictions;
  ASSERT_GT(forms.size(), 1U);
  EXPECT_EQ(forms.front().precision, precision_label(morph.start));
  EXPECT_EQ(forms.front().morph_s, 0);
  EXPECT_EQ(forms.front().verdict, "chosen");
  EXPECT_GT(forms.back().kl_nats, 0);
}

// A request waits for a KV cache that only the policy makes, if no floor forbids it.
TEST_F(Steering, AWishThatBreaksThePromiseToARequestIsRefused) {
  send(Arrival{request(1, 60, 30)});  // 11 blocks of 10
  ASSERT_EQ(sink.all<Accepted>().size(), 0U);
  EngineConfig longer = engine_for_test(morph);
  longer.scheduler.max_model_len = 1024;
  HeldDevice other(morph);
  RecordingSink heard;
  Engine roomy(longer, other, heard);
  const auto asked = [&](FormWish wished) {
    roomy.handle({now_ns += kNsPerMs, WantForm{1, std::move(wished)}});
    const Result<Morph>& answer = std::get<WishAnswered>(heard.outputs.back()).morph;
    return answer.ok() ? "granted" : answer.error().message;
  };
  roomy.handle({now_ns += kNsPerMs, Arrival{request(1, 60, 30)}});
  ASSERT_EQ(heard.all<Accepted>().size(), 1U);
  EXPECT_NE(asked({.mode = MorphMode::kOff}).find("needs 12: ask again"), std::string::npos);
  EXPECT_NE(asked({.floor = QualityFloor{.most_lowered_layers = 0}}).find("at most 10 blocks"),
            std::string::npos);
  EXPECT_EQ(heard.form->mode, morph.mode);
  EXPECT_EQ(asked({.mode = MorphMode::kAccuracy}), "granted");
  roomy.handle({now_ns += kNsPerMs, Cancel{RequestId{1}}});
  EXPECT_EQ(asked({.mode = MorphMode::kOff}), "granted");
}

std::shared_ptr<const Packing> packing_of(std::int64_t done, std::vector<SwapComponent> missing) {
  return std::make_shared<const Packing>(
      Packing{.done = done, .total = 5, .missing = std::move(missing), .failure = {}});
}

TEST_F(Steering, LowersAsFarAsVariantsArePackedAndAnOperatorFurther) {
  std::vector<SwapComponent> missing;
  for (int layer = 0; layer < 2; ++layer) {
    for (const Component half : kLayerHalves) {
      missing.push_back({layer, half, Precision::kW4});
    }
  }
  missing.push_back({0, Component::kEmbeddings, Precision::kW8});
  send(VariantsPacked{packing_of(0, missing)});
  ASSERT_NE(sink.form->packing, nullptr);
  EXPECT_EQ(sink.form->packing->total, 5);
  begin_burst();
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(device.preparing.empty());
    end_step();
  }
  EXPECT_EQ(sink.form->wanted, morph.start);
  missing.erase(missing.begin(), missing.begin() + 2);  // the first layer is packed
  send(VariantsPacked{packing_of(2, missing)});
  settle();
  EXPECT_EQ(sink.all<Finished>().size(), 1U + 6U);
  EXPECT_GT(sink.form->swaps_down_total, 0);
  for (const auto& record : *sink.form->history) {
    const auto* swap = std::get_if<SwapComponent>(&record->step);
    EXPECT_TRUE(swap == nullptr || swap->layer == 0) << to_string(record->step);
  }
  ASSERT_TRUE(wish(layers(Precision::kBf16, Precision::kW4)).ok());
  settle();
  EXPECT_EQ(device.form().layer_precision[1].mlp, Precision::kW4) << "the swap packs it";
  // Engines that take the place of this one know it too.
  EngineState state = engine.release_all(++now_ns);
  HeldDevice other(morph);
  RecordingSink heard;
  Engine next(engine_for_test(morph), other, heard);
  next.absorb(std::move(state), ++now_ns);
  EXPECT_EQ(heard.form->packing->done, 2);
}

TEST_F(Steering, AShrinkEndsWhenItsBlocksAreWantedAgain) {
  begin_burst();
  lower();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    send(Cancel{RequestId{id}});
  }
  settle();
  send(Arrival{request(11, 52, 12)});  // in the newest blocks, which come last
  const auto shrinking = [&] {
    return sink.form->wanted.kv.blocks < sink.observation.kv_blocks && device.preparing.empty();
  };
  for (int i = 0; i < 40 && !shrinking(); ++i) {
    if (!device.preparing.empty()) {
      ready();
    } else {
      now_ns += 10 * kNsPerS;
      end_step();
    }
  }
  ASSERT_TRUE(shrinking());
  const std::int64_t before = sink.observation.kv_blocks;
  for (std::uint64_t id = 21; id <= 25; ++id) {
    send(Arrival{request(id, 52, 10)});
  }
  EXPECT_EQ(sink.form->wanted.kv.blocks, before);
  EXPECT_EQ(sink.form->failures_total, 0);
  settle();
  EXPECT_EQ(sink.all<Finished>().size(), 1U + 6U + 6U);
}

// All layers at the fewest bits would make room for it, but the quality floor is above that.
TEST_F(Steering, ARequestThatThePolicyCanNeverMakeRoomForIsRefusedAtOnce) {
  MorphConfig config = morph;
  config.bounds.floor.most_lowered_layers = 1;
  EngineConfig whole = engine_for_test(morph);
  whole.morph = config;
  whole.scheduler.max_model_len = 1024;
  const std::int64_t reachable = form_path(config.bounds).back().kv.blocks;
  ASSERT_LT(reachable, whole.scheduler.largest_kv_blocks);
  HeldDevice calm(config);
  RecordingSink heard;
  Engine alone(whole, calm, heard);
  const auto tokens = static_cast<int>(8 * reachable);
  alone.handle({1, Arrival{request(1, tokens - 1, 3)}});
  ASSERT_EQ(heard.all<Refused>().size(), 1U) << "it would wait in vain";
  EXPECT_EQ(heard.all<Refused>()[0].error.code, ErrorCode::kInvalidArgument);
  alone.handle({2, Arrival{request(2, tokens - 1, 2)}});
  EXPECT_EQ(heard.all<Accepted>().size(), 1U) << "what fits the last form it may choose";
}

TEST_F(Steering, WhatOnlyALargerKvCouldHoldFailsWhenNoneCanBeHad) {
  MorphConfig config = morph_for_test(5, MorphMode::kBalanced);
  config.policy = morph.policy;
  HeldDevice broken(config);
  RecordingSink heard;
  Engine alone(engine_for_test(config), broken, heard);
  alone.handle({now_ns, Arrival{request(1, 50, 4)}});  // 7 blocks
  ASSERT_EQ(heard.all<Accepted>().size(), 1U);
  int ticks = 0;
  for (; heard.all<Finished>().empty() && ticks < 100'000; ++ticks) {
    if (!broken.preparing.empty()) {
      alone.handle({now_ns, broken.ready(0, Error{ErrorCode::kInternal, "no such variant"})});
      continue;
    }
    ASSERT_TRUE(alone.next_deadline_ns().has_value());
    now_ns = *alone.next_deadline_ns();
    alone.handle({now_ns, Tick{}});
  }
  ASSERT_EQ(heard.all<Finished>().size(), 1U);
  EXPECT_EQ(heard.all<Finished>()[0].reason, FinishReason::kFailed);
  EXPECT_NE(heard.all<Finished>()[0].failure.find("larger KV cache"), std::string::npos);
  EXPECT_TRUE(heard.all<Finished>()[0].may_retry);
  EXPECT_GE(now_ns, static_cast<TimeNs>(kHorizonS * kNsPerS));
  EXPECT_GT(heard.form->failures_total, 2) << "it was tried";
  EXPECT_LT(heard.form->failures_total, 5 * 30)
      << "each swap not more often than every two seconds";
  EXPECT_TRUE(alone.idle());
}

TEST_F(Steering, AModeThatIsSetWhileRequestsRunDecidesAboutThem) {
  ASSERT_TRUE(wish({.mode = MorphMode::kOff}).ok());
  EXPECT_EQ(sink.form->mode, MorphMode::kOff);
  EXPECT_FALSE(sink.form->pinned);
  begin_burst();
  EXPECT_EQ(sink.form->wanted, morph.start);
  const auto answer = wish({.mode = MorphMode::kPerformance});
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE(answer->steps.empty());
  lower();
}

TEST_F(Steering, AFormBelowAFloorThatIsSetIsLeftWhenItsKvIsNotNeeded) {
  begin_burst();
  lower();
  const QualityFloor none_lowered{.most_lowered_layers = 0};
  ASSERT_TRUE(wish({.floor = none_lowered}).ok());
  EXPECT_EQ(sink.form->floor, none_lowered);
  settle();
  tick();
  settle();
  EXPECT_EQ(device.form(), morph.start);
  EXPECT_NE(sink.form->history->back()->reason.find("below the quality floor"), std::string::npos);
}

TEST_F(Steering, AnOperatorsFormStaysUntilItIsReleased) {
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kW4)).ok());
  settle();
  const Form wished = device.form();
  for (int i = 0; i < 50; ++i) {
    now_ns += 20 * kNsPerMs;
    send(Tick{});
  }
  EXPECT_EQ(device.form(), wished);
  EXPECT_EQ(engine.next_deadline_ns(), std::nullopt);
  const auto released = wish({.release = true});
  ASSERT_TRUE(released.ok());
  EXPECT_TRUE(released->steps.empty());
  EXPECT_FALSE(sink.form->pinned);
  for (int i = 0; i < 10'000 && device.form() != morph.start; ++i) {
    tick();
    settle();
  }
  EXPECT_EQ(device.form(), morph.start);
}

TEST_F(EngineMorph, ThePolicysModeAndFloorGoOnInTheEngineThatTakesItsPlace) {
  FormWish chosen;
  chosen.mode = MorphMode::kAccuracy;
  chosen.floor = QualityFloor{.most_lowered_layers = 1};
  ASSERT_TRUE(wish(chosen).ok());
  settle();
  RecordingSink heard;
  Engine next(engine_for_test(morph), device, heard);
  next.absorb(engine.release_all(now_ns), now_ns);
  ASSERT_NE(heard.form, nullptr);
  EXPECT_EQ(heard.form->mode, MorphMode::kAccuracy);
  EXPECT_EQ(heard.form->floor, chosen.floor);
  EXPECT_FALSE(heard.form->pinned);
}

MorphConfig by_paper() {
  MorphConfig config = morph_for_test(10, MorphMode::kBalanced);
  config.policy.rule = MorphRule::kPaper;
  config.bounds.embeddings_stay = true;
  return config;
}

struct PapersSteering : EngineMorph {
  PapersSteering() : EngineMorph(by_paper()) {}

  bool lowers_at_next_decision() {
    now_ns += morph.decide_every_ns;
    send(Tick{});
    return !device.preparing.empty();
  }
};

// Nine of ten KV blocks are in use from the first pass on.
TEST_F(PapersSteering, LowersAfterThreeForwardPassesOverAThreshold) {
  send(Arrival{request(1, 36, 20)});
  send(Arrival{request(2, 28, 10)});
  for (int decision = 0; decision < 5; ++decision) {
    EXPECT_FALSE(lowers_at_next_decision()) << "no pass has ended";
  }
  end_step();
  EXPECT_FALSE(lowers_at_next_decision());
  end_step();
  EXPECT_FALSE(lowers_at_next_decision());
  end_step();
  EXPECT_TRUE(lowers_at_next_decision());
  const Form one_lower = sink.form->wanted;
  for (int decision = 0; decision < 5; ++decision) {
    lowers_at_next_decision();
    EXPECT_EQ(sink.form->wanted, one_lower) << "no further pass has ended";
  }
}

TEST_F(PapersSteering, ThreePassesAreEnoughBetweenTwoDecisions) {
  send(Arrival{request(1, 36, 20)});
  send(Arrival{request(2, 28, 10)});
  for (int pass = 0; pass < 3; ++pass) {
    end_step();
  }
  EXPECT_TRUE(lowers_at_next_decision());
  settle();
  for (int decision = 0; decision < 100 && device.form() != morph.start; ++decision) {
    now_ns += morph.decide_every_ns;
    send(Tick{});
    settle();
  }
  EXPECT_EQ(device.form(), morph.start) << "without requests, full precision returns";
}

}  // namespace
}  // namespace protean
