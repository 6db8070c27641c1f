#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/steering_scene_for_test.h"

// Morphs for which KV lends pages, and gets them back.

namespace protean {
namespace {

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

// Two sequences have nearly all blocks of full precision, of which the last swap on the way up
// needs some.
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
  const auto begun = [&] { return std::count(device.log.begin(), device.log.end(), swap); };
  const std::ptrdiff_t before = begun();
  ASSERT_EQ(device.form(), morph.start);
  arrive(21, 60, 56);
  ASSERT_FALSE(sink.form->history->empty());
  const MorphRecord& shrink = *sink.form->history->back();
  EXPECT_TRUE(std::holds_alternative<ResizeKv>(shrink.step));
  EXPECT_NE(shrink.failure.find("wanted again"), std::string::npos) << shrink.failure;
  while (now_ns < shrink.done_ns + 10 * kNsPerMs) {
    send(Tick{});
  }
  EXPECT_EQ(begun(), before + 1) << "begun anew";
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

// Requests are late for the LM head alone, whose variant needs nearly all blocks for a while.
MorphConfig slow_lm_head() {
  MorphConfig config = morph_for_test(36, MorphMode::kAccuracy, 2, 1000);
  config.policy.ttft_ns = 50 * kNsPerMs;
  config.bounds.floor.most_lowered_layers = 1;
  return config;
}

StepCost cost_of_slow_lm_head() {
  StepCost cost = cost_for_test();
  cost.logits_at(Precision::kBf16).step_us = 60'000;
  cost.logits_at(Precision::kW8).step_us = 1'000;
  return cost;
}

struct SteeringWithSlowLmHead : EngineMorph {
  SteeringWithSlowLmHead() : EngineMorph(slow_lm_head(), cost_of_slow_lm_head()) {}
};

// There is room for the variant for 0.1 s at a time, which is too short.
TEST_F(SteeringWithSlowLmHead, AMorphThatMayNotPreemptIsSeldomBegunInVain) {
  for (std::uint64_t id = 1; now_ns < 20 * kNsPerS; id += 2) {
    send(Arrival{request(id, 4, 1)});
    now_ns += 65 * kNsPerMs;
    end_step();
    now_ns += 100 * kNsPerMs;
    send(Tick{});
    send(Arrival{request(id + 1, 52, 2)});  // 7 blocks
    now_ns += 65 * kNsPerMs;
    end_step();
    send(Cancel{RequestId{id + 1}});
    while (!device.work.empty()) {
      end_step();
    }
  }
  EXPECT_GT(times_called_off(*sink.form), 2);
  EXPECT_LE(times_called_off(*sink.form), 10) << "one in two seconds";
  EXPECT_EQ(device.form(), morph.start);
}

// An embedding matrix and LM head whose variant takes nearly all pages of the KV cache.
struct LargeEmbeddings : EngineMorph {
  LargeEmbeddings() : EngineMorph(morph_for_test(36, MorphMode::kOff, 2, 1000)) {}

  void lend() {
    const auto granted = wish({.embeddings = Precision::kW8});
    ASSERT_TRUE(granted.ok()) << granted.error().message;
    ASSERT_EQ(granted->steps.size(), 3U);
    ready();  // the smaller KV cache
    apply();
    ASSERT_LT(device.form().kv.blocks, 7);
    ASSERT_EQ(device.preparing.size(), 1U);
  }
  void expect_served(std::uint64_t id) {
    send(Arrival{request(id, 40, 16)});  // 7 blocks
    settle();
    EXPECT_EQ(sink.all<Finished>().back().request, RequestId{id});
    EXPECT_EQ(sink.all<Finished>().back().reason, FinishReason::kLength);
  }
};

TEST_F(LargeEmbeddings, BorrowFromTheCacheAndNoRequestIsRefusedMeanwhile) {
  lend();
  expect_served(1);
  EXPECT_EQ(device.form().embeddings, Precision::kW8);
  EXPECT_GT(device.form().kv.blocks, morph.start.kv.blocks);
  EXPECT_EQ(sink.form->swaps_down_total, 1);
  ASSERT_TRUE(wish({.embeddings = Precision::kBf16}).ok());
  expect_served(2);
  EXPECT_EQ(device.form(), morph.start);
  EXPECT_EQ(sink.form->swaps_up_total, 1);
}

TEST_F(LargeEmbeddings, GiveBackWhatTheyBorrowedIfTheyFail) {
  lend();
  fail(0, "no value for these weights");
  expect_served(1);
  EXPECT_EQ(device.form(), morph.start) << "without a policy too";
  EXPECT_EQ(sink.form->failures_total, 1);
}

// The variant is packed for a minute, longer than a request waits for a KV cache that may never
// come.
TEST_F(LargeEmbeddings, NoRequestFailsHoweverLongTheyBorrow) {
  send(Arrival{request(1, 40, 16)});
  end_step();
  ASSERT_TRUE(wish({.embeddings = Precision::kW8}).ok());
  while (device.form().kv.blocks == morph.start.kv.blocks) {
    if (device.work.empty()) {
      ready();
    } else {
      end_step();
    }
    apply();
  }
  ASSERT_LT(device.form().kv.blocks, 7);
  send(Arrival{request(2, 40, 16)});
  for (int i = 0; i < 60; ++i) {
    now_ns += kNsPerS;
    send(Tick{});
    const auto next_ns = engine.next_deadline_ns();
    EXPECT_TRUE(!next_ns || *next_ns > now_ns + kNsPerMs);
  }
  EXPECT_TRUE(sink.all<Finished>().empty());
  settle();
  const auto finished = sink.all<Finished>();
  ASSERT_EQ(finished.size(), 2U);
  EXPECT_EQ(finished[0].reason, FinishReason::kLength);
  EXPECT_EQ(finished[1].reason, FinishReason::kLength);
}

TEST_F(LargeEmbeddings, ServeARequestThatWasPromisedWhatTheyBorrow) {
  send(Arrival{request(1, 40, 16)});
  ASSERT_TRUE(wish({.embeddings = Precision::kW8}).ok());
  expect_served(2);
  ASSERT_EQ(sink.all<Finished>().size(), 2U);
  EXPECT_EQ(sink.all<Finished>()[0].reason, FinishReason::kLength);
  EXPECT_EQ(device.form().embeddings, Precision::kW8);
  EXPECT_NE(error({.embeddings = Precision::kW4}).find("served are bf16, w8"), std::string::npos);
}

}  // namespace
}  // namespace protean
