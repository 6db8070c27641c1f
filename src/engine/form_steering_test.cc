#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/morph_scene_for_test.h"

// What the policy's wishes come to.

namespace protean {
namespace {

// A policy that lowers layers for a few milliseconds of waiting.
MorphConfig hasty() {
  MorphConfig config = morph_for_test(10, MorphMode::kPerformance);
  config.policy.ttft_ns = 50 * kNsPerMs;
  config.decide_every_ns = 2 * kNsPerMs;
  config.moves_per_step = 1;
  config.moves_share = 0;
  return config;
}

struct Steering : EngineMorph {
  explicit Steering(const MorphConfig& config = hasty()) : EngineMorph(config) {}

  void tick() {
    now_ns = std::max(now_ns, engine.next_deadline_ns().value_or(now_ns) - kNsPerMs);
    send(Tick{});
  }
  // Six sequences that want 36 blocks, after minutes with one.
  void begin_burst() {
    send(Arrival{request(1000, 4, 1)});
    settle();
    now_ns += 300 * kNsPerS;
    for (int i = 0; i < 100 && device.form() != morph.start; ++i) {  // nothing is known at first
      tick();
      settle();
    }
    ASSERT_EQ(device.form(), morph.start);
    calm = sink.form->history->size();
    for (std::uint64_t id = 1; id <= 6; ++id) {
      send(Arrival{request(id, 24, 24)});
    }
  }
  // Goes on until the form has changed for them.
  void lower() {
    for (int i = 0; i < 200 && device.form().kv.blocks <= 30 && !engine.idle(); ++i) {
      if (!device.preparing.empty()) {
        ready();
      } else {
        end_step();
      }
    }
    ASSERT_GT(device.form().kv.blocks, 30);
  }

  std::size_t calm = 0;  // records of the history before the burst
};

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

// Like hasty(), but all pages are weights and KV, and blocks move at once.
MorphConfig without_free_pages() {
  MorphConfig config = hasty();
  config.moves_per_step = 64;
  config.bounds.budget.pages -= config.bounds.budget.reserve;
  config.bounds.budget.reserve = 0;
  return config;
}

struct SteeringWithoutFreePages : Steering {
  SteeringWithoutFreePages() : Steering(without_free_pages()) {}
};

// Sequences that run use all blocks, so the last of them make room for the first swap.
TEST_F(SteeringWithoutFreePages, KvLendsTheFirstSwapItsPagesThoughAllBlocksAreInUse) {
  begin_burst();
  lower();
  ASSERT_GT(sink.form->history->size(), calm);
  const MorphRecord& first = *(*sink.form->history)[calm];
  EXPECT_EQ(first.failure, "");
  ASSERT_TRUE(kv_blocks_of(first.step)) << to_string(first.step);
  EXPECT_LT(*kv_blocks_of(first.step), morph.start.kv.blocks);
  settle();
  const auto finished = sink.all<Finished>();
  ASSERT_EQ(finished.size(), 1U + 6U);
  for (const Finished& one : finished) {
    EXPECT_EQ(one.reason, FinishReason::kLength);
  }
  for (int i = 0; i < 10'000 && device.form() != morph.start; ++i) {
    tick();
    settle();
  }
  EXPECT_EQ(device.form(), morph.start) << "and for the last one on the way back";
  EXPECT_EQ(device.pages_used(), morph.bounds.budget.pages);
  EXPECT_EQ(sink.form->failures_total, 0);
}

std::ptrdiff_t times_called_off(const FormStatus& status) {
  return std::count_if(status.history->begin(), status.history->end(), [](const auto& record) {
    return record->failure.find("wanted again") != std::string::npos;
  });
}

// Two sequences have nearly all blocks of full precision, of which the last swap on the way up needs some.
TEST_F(SteeringWithoutFreePages, ARaiseThatKvHasNoRoomForIsNotBegun) {
  begin_burst();
  lower();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    send(Cancel{RequestId{id}});
  }
  settle();
  send(Arrival{request(11, 41, 20)});
  send(Arrival{request(12, 17, 20)});
  end_step();
  const std::ptrdiff_t before = times_called_off(*sink.form);
  ASSERT_TRUE(wish({.floor = QualityFloor{.most_lowered_layers = 0}}).ok());
  for (int i = 0; i < 100; ++i) {
    while (!device.preparing.empty()) {
      ready();
    }
    if (device.work.size() > 1) {  // a commit waits for the step
      end_step();
    }
    now_ns += 100 * kNsPerMs;
    send(Tick{});
  }
  EXPECT_EQ(times_called_off(*sink.form), before);
  EXPECT_NE(device.form(), morph.start);
  settle();
  EXPECT_EQ(sink.all<Finished>().back().reason, FinishReason::kLength);
  for (int i = 0; i < 10'000 && device.form() != morph.start; ++i) {
    tick();
    settle();
  }
  EXPECT_EQ(device.form(), morph.start) << "when they have ended";
}

TEST_F(SteeringWithoutFreePages, KvGetsBackWhatItLentIfASwapFailsAfterThePolicyWasSwitchedOff) {
  begin_burst();
  for (int i = 0; i < 200 && device.form() == morph.start; ++i) {
    if (!device.preparing.empty()) {
      ready();
    } else {
      end_step();
    }
    apply();
  }
  ASSERT_LT(device.form().kv.blocks, morph.start.kv.blocks);
  ASSERT_FALSE(device.preparing.empty());
  ASSERT_TRUE(wish({.mode = MorphMode::kOff}).ok());
  fail(0, "no such variant");
  settle();
  EXPECT_EQ(device.form(), morph.start);
  EXPECT_EQ(sink.observation.kv_blocks, morph.start.kv.blocks);
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
  EXPECT_GE(now_ns, config.larger_kv_within_ns);
  EXPECT_GT(heard.form->failures_total, 2) << "it was tried";
  EXPECT_LT(heard.form->failures_total, 80) << "each swap not more often than every two seconds";
  EXPECT_TRUE(alone.idle());
}

// Many layers, more KV than requests need, and bits that make steps faster.
MorphConfig idle_kv(std::int64_t blocks, int moves_per_step) {
  MorphConfig config = morph_for_test(blocks, MorphMode::kPerformance, 8);
  config.policy.ttft_ns = 60 * kNsPerMs;
  config.decide_every_ns = 2 * kNsPerMs;
  config.moves_per_step = moves_per_step;
  config.moves_share = 0;
  return config;
}

struct SteeringWithIdleKv : EngineMorph {
  explicit SteeringWithIdleKv(const MorphConfig& config = idle_kv(200, 64),
                              const StepCost& cost = cost_for_test())
      : EngineMorph(config, cost) {}

  void arrive(std::uint64_t first, std::uint64_t last, int prompt) {
    for (std::uint64_t id = first; id <= last; ++id) {
      send(Arrival{request(id, prompt, 4)});
    }
  }
  // Until what was logged has such a line, with steps of 5 ms.
  std::string first_logged(const std::string& begin) {
    const auto found = [&] {
      return std::find_if(device.log.begin(), device.log.end(),
                          [&](const auto& line) { return line.starts_with(begin); });
    };
    for (int i = 0; i < 100 && found() == device.log.end() && !device.work.empty(); ++i) {
      now_ns += 5 * kNsPerMs;
      end_step();
    }
    return found() == device.log.end() ? "" : *found();
  }
};

TEST_F(SteeringWithIdleKv, ALoweringForSpeedBorrowsPagesOfIdleBlocksAndGivesThemBack) {
  arrive(1, 8, 60);
  const std::string shrink = first_logged("prepare KV to ");
  ASSERT_NE(shrink, "");
  EXPECT_LT(std::stoll(shrink.substr(14)), 200);
  for (int i = 0; i < 10 && device.form().kv.blocks == 200; ++i) {
    while (!device.preparing.empty()) {
      ready();
    }
    end_step();
    apply();
  }
  EXPECT_GE(device.preparing.size(), 10U) << "of 16 swaps";
  settle();
  EXPECT_EQ(layers_at(device.form(), Precision::kW4), 8);
  EXPECT_GT(device.form().kv.blocks, 200);
  EXPECT_EQ(sink.all<Finished>().size(), 8U);
  EXPECT_EQ(sink.observation.preemptions_total, 0);
}

struct SteeringWithIdleKvThatStays : SteeringWithIdleKv {
  SteeringWithIdleKvThatStays() : SteeringWithIdleKv(idle_kv(50, 0)) {}
};

TEST_F(SteeringWithIdleKvThatStays, AreTheyWantedAfterAllLayersAreLoweredWithoutThemAtOnce) {
  // Short answers, whose number makes the last blocks those that are handed out next.
  for (std::uint64_t id = 100; id < 168; ++id) {
    arrive(id, id, 12);
    while (!device.work.empty()) {  // steps take what they cost
      now_ns += 4 * kNsPerMs;
      end_step();
    }
  }
  arrive(1, 20, 20);
  const std::string swap = first_logged("prepare layer");
  ASSERT_NE(swap, "");
  ASSERT_TRUE(sink.form->history->empty());
  ASSERT_EQ(device.form(), morph.start);
  arrive(21, 60, 56);
  ASSERT_FALSE(sink.form->history->empty());
  const MorphRecord& shrink = *sink.form->history->back();
  EXPECT_TRUE(std::holds_alternative<ResizeKv>(shrink.step));
  EXPECT_NE(shrink.failure.find("wanted again"), std::string::npos) << shrink.failure;
  while (now_ns < shrink.done_ns + 10 * kNsPerMs) {
    send(Tick{});
  }
  EXPECT_EQ(std::count(device.log.begin(), device.log.end(), swap), 2) << "begun anew";
  settle();
  EXPECT_EQ(sink.all<Finished>().size(), 68U + 60U);
}

MorphConfig idle_kv_without_free_pages() {
  MorphConfig config = idle_kv(50, 0);
  config.bounds.budget.pages -= config.bounds.budget.reserve;
  config.bounds.budget.reserve = 0;
  return config;
}

// Steps take 1 ms for each token at bf16, and a tenth of that at w4.
StepCost slow_prompts() {
  StepCost cost = cost_for_test();
  cost.of(Precision::kBf16).token_us = cost.of(Precision::kBf16).more_token_us = 900;
  return cost;
}

struct SteeringWithFullKv : SteeringWithIdleKv {
  SteeringWithFullKv() : SteeringWithIdleKv(idle_kv_without_free_pages(), slow_prompts()) {}
};

// Prompts have or want 49 of 50 blocks, and all but one would be late.
TEST_F(SteeringWithFullKv, ALoweringForSpeedTakesTheBlocksThatItsFirstSwapLacks) {
  ASSERT_TRUE(wish({.mode = MorphMode::kOff}).ok());
  for (std::uint64_t id = 100; id < 168; ++id) {  // answers are short
    arrive(id, id, 12);
    while (!device.work.empty()) {  // steps take what they cost
      now_ns += 15 * kNsPerMs;
      end_step();
    }
  }
  ASSERT_TRUE(wish({.mode = MorphMode::kPerformance}).ok());
  arrive(1, 7, 56);
  for (int i = 0; i < 40 && device.form() == morph.start; ++i) {
    now_ns += 5 * kNsPerMs;
    if (!device.preparing.empty()) {
      ready();
    } else {
      end_step();
    }
    apply();
  }
  EXPECT_LT(device.form().kv.blocks, 49);
  EXPECT_LE(times_called_off(*sink.form), 1);
  settle();
  EXPECT_EQ(sink.all<Finished>().size(), 68U + 7U);
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

}  // namespace
}  // namespace protean
