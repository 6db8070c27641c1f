#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/morph_scene_for_test.h"

// Morphs of an engine whose device answers when the test lets it.

namespace protean {
namespace {

using Log = std::vector<std::string>;

TEST_F(EngineMorph, PreparesAheadAndCommitsInOrderWhateverIsReadyFirst) {
  const auto granted = wish(layers(Precision::kW4, Precision::kBf16));
  ASSERT_TRUE(granted.ok()) << granted.error().message;
  const auto steps = granted->steps.size();
  EXPECT_GE(steps, 3U);  // two halves, and KV in the pages that they free
  EXPECT_EQ(sink.form->wanted.layer_precision[0].mlp, Precision::kW4);
  EXPECT_TRUE(sink.form->pinned);
  const Log ahead = {"prepare layer 0 attention to w4", "prepare layer 0 mlp to w4"};
  if (device.log.size() == 1) {  // if pages allow no more
    EXPECT_EQ(device.log, (Log{ahead[0]}));
    ready();
  } else {
    EXPECT_EQ(device.log, ahead);
    ready(1);
    EXPECT_EQ(device.log, ahead) << "the second waits for the first";
    ready(0);
  }
  settle();
  EXPECT_EQ(device.form().layer_precision[0], (LayerPrecision{Precision::kW4, Precision::kW4}));
  EXPECT_GT(device.form().kv.blocks, 10);
  EXPECT_EQ(sink.form->form, device.form());
  EXPECT_EQ(sink.form->wanted, device.form());
  EXPECT_EQ(sink.form->swaps_down_total, 2);
  EXPECT_EQ(sink.form->kv_resizes_total, std::ssize(granted->steps) - 2);
  EXPECT_EQ(sink.form->history->size(), steps);
  EXPECT_EQ(sink.form->pages.free, morph.bounds.budget.pages - device.pages_used());
  EXPECT_LT(place("commit layer 0 attention to w4"), place("commit layer 0 mlp to w4"));
}

TEST_F(EngineMorph, StepsAfterACommitAreOfTheNewFormAndReuseNothingOfTheOld) {
  send(Arrival{request(1, 20, 2)});
  end_step();
  end_step();
  ASSERT_EQ(sink.all<Finished>().size(), 1U);
  Request twin = request(2, 20, 1);
  twin.prompt = request(1, 20, 1).prompt;
  send(Arrival{twin});
  EXPECT_EQ(next_plan().slices[0].first_position, 16) << "the same form finds its blocks";
  end_step();
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kBf16)).ok());
  ready();
  const auto committed = place("commit layer 0 attention to w4");
  ASSERT_LT(committed, std::ssize(device.log));
  twin.id = RequestId{3};
  send(Arrival{twin});
  EXPECT_GT(std::ssize(device.log), committed + 1);
  EXPECT_EQ(device.log.back(), "step");
  EXPECT_EQ(next_plan().slices[0].first_position, 0) << "another form's blocks are not reused";
  settle();
  EXPECT_EQ(sink.all<Finished>().back().usage.cached_tokens, 0);
}

struct SlowTokens : EngineMorph {
  SlowTokens() : EngineMorph(morph_for_test(10), {.token_us = 10'000}) {}
};

// Steps take 10 ms for each token, so that one of 60 tokens is too long during a morph.
TEST_F(SlowTokens, StepsAreShortWhileTheFormChanges) {
  const auto step_tokens = [this] {
    const auto tokens = static_cast<int>(next_plan().tokens.size());
    now_ns += tokens * 10 * kNsPerMs;
    end_step();
    return tokens;
  };
  send(Arrival{request(5, 60, 1)});
  EXPECT_EQ(step_tokens(), 60);
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kBf16)).ok());
  send(Arrival{request(6, 60, 1)});
  EXPECT_NEAR(step_tokens(), 25, 1);
  settle();
  send(Arrival{request(7, 60, 1)});
  EXPECT_EQ(step_tokens(), 60);
  settle();
}

TEST_F(EngineMorph, UsageSaysWhereTokensWereDrawn) {
  send(Arrival{request(1, 4, 4)});
  end_step();
  ASSERT_TRUE(
      wish({.layers = {{Precision::kW4, Precision::kBf16}, {Precision::kBf16, Precision::kBf16}}})
          .ok());
  ready();  // while the second step runs, which is of the old form
  while (!device.work.empty()) {
    end_step();
  }
  const auto finished = sink.all<Finished>();
  ASSERT_EQ(finished.size(), 1U);
  const auto& at = finished[0].usage.output_at;
  ASSERT_EQ(at.size(), 2U);
  EXPECT_EQ(at[0].precision, "bf16:2");
  EXPECT_EQ(at[0].tokens, 2);
  EXPECT_EQ(at[1].precision, "bf16:1.5+w4:0.5");
  EXPECT_EQ(at[1].tokens, 2);
  now_ns += 2 * kNsPerS;
  send(Tick{});
  ASSERT_EQ(sink.form->output_tokens.size(), 2U);
  EXPECT_EQ(sink.form->output_tokens[0].tokens + sink.form->output_tokens[1].tokens, 4);
}

TEST_F(EngineMorph, BlocksArePublishedWhenTheirMemoryIsThere) {
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kW4)).ok());
  for (int i = 0;
       i < 20 && !std::any_of(device.log.begin(), device.log.end(),
                              [](const auto& line) { return line.starts_with("prepare KV"); });
       ++i) {
    ready();
    apply();
  }
  EXPECT_EQ(sink.observation.kv_blocks, 10);
  while (!device.preparing.empty() && sink.observation.kv_blocks == 10) {
    ready();
  }
  EXPECT_GT(sink.observation.kv_blocks, 10);
  settle();
  EXPECT_EQ(sink.observation.kv_blocks, device.form().kv.blocks);
}

struct EngineMorphOfManyLayers : EngineMorph {
  EngineMorphOfManyLayers() : EngineMorph(morph_for_test(10, MorphMode::kOff, 8)) {}
};

TEST_F(EngineMorphOfManyLayers, SwapsOvertakeALargerKvThatWaitsForPagesAndLeaveItEnough) {
  const Precision low = Precision::kW4;
  const auto granted = wish({.layers = std::vector<LayerPrecision>(8, {low, low})});
  ASSERT_TRUE(granted.ok()) << granted.error().message;
  int overtaken = 0;
  for (int i = 0; i < 1000 && device.form() != sink.form->wanted; ++i) {
    ready(device.preparing.size() - 1);  // the last step first, so that many are committed at once
    if (device.preparing.empty()) {
      apply();
    }
  }
  EXPECT_EQ(device.form(), sink.form->wanted);
  for (auto step = granted->steps.begin(); step + 1 < granted->steps.end(); ++step) {
    if (std::holds_alternative<ResizeKv>(*step)) {
      const std::string growth = to_string(*step), swap = to_string(*(step + 1));
      overtaken += place("prepare " + swap) < place("prepare " + growth) ? 1 : 0;
      EXPECT_LT(place("commit " + growth), place("commit " + swap));
    }
  }
  EXPECT_GT(overtaken, 0);
}

TEST_F(EngineMorph, AShrinkMovesLiveBlocksUnderDecodesAndEnds) {
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kW4)).ok());
  settle();
  const std::int64_t large = device.form().kv.blocks;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    send(Arrival{request(id, 14, 40)});
  }
  end_step();
  ASSERT_TRUE(wish(layers(Precision::kBf16, Precision::kBf16)).ok());
  std::int64_t steps = 0;
  while (device.form() != morph.start && ++steps < 200) {
    while (!device.preparing.empty()) {
      ready();
    }
    apply();
    if (!device.work.empty()) {
      end_step();
    }
  }
  EXPECT_EQ(device.form(), morph.start) << "the shrink never ended";
  EXPECT_LT(steps, 60);
  EXPECT_GT(large, 20);
  EXPECT_GT(sink.form->blocks_moved_total, 0);
  EXPECT_GT(sink.observation.preemptions_total, 0) << "a wish preempts";
  settle();
  EXPECT_EQ(sink.all<Finished>().size(), 6U);
  for (const Finished& finished : sink.all<Finished>()) {
    EXPECT_EQ(finished.reason, FinishReason::kLength);
    EXPECT_EQ(finished.usage.output_tokens, 40);
  }
}

MorphConfig few_moves() {
  MorphConfig config = morph_for_test(10);
  config.moves_per_step = 2;
  config.moves_share = 0.0002;
  return config;
}

struct EngineMorphFewMoves : EngineMorph {
  EngineMorphFewMoves() : EngineMorph(few_moves()) {}
};

TEST_F(EngineMorphFewMoves, FewBlocksMoveBetweenTwoSteps) {
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kW4)).ok());
  settle();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    send(Arrival{request(id, 14, 10)});
  }
  end_step();
  ASSERT_TRUE(wish({.kv_blocks = 20}).ok());
  send(Tick{});  // without a step, an event moves no more blocks
  settle();
  int since_step = 0;
  int all = 0;
  for (const std::string& line : device.log) {
    since_step = line == "step" ? 0 : since_step;
    if (line.starts_with("move ")) {
      since_step += std::stoi(line.substr(5));
      all += std::stoi(line.substr(5));
    }
    EXPECT_LE(since_step, 2);
  }
  EXPECT_GT(all, 2);
  EXPECT_EQ(device.form().kv.blocks, 20);
}

// At 4 bytes per ns, this share of a step of 80 ms moves 16 blocks of 4 KiB.
TEST_F(EngineMorphFewMoves, LongStepsLetMoreBlocksMove) {
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kW4)).ok());
  settle();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    send(Arrival{request(id, 14, 10)});
  }
  now_ns += 80 * kNsPerMs;
  end_step();
  ASSERT_TRUE(wish({.kv_blocks = 20}).ok());
  const auto moved = std::find_if(device.log.begin(), device.log.end(),
                                  [](const auto& line) { return line.starts_with("move "); });
  ASSERT_NE(moved, device.log.end());
  EXPECT_GT(std::stoi(moved->substr(5)), 2);
  settle();
  EXPECT_EQ(device.form().kv.blocks, 20);
}

TEST_F(EngineMorph, AFailureStopsAtALegalFormAndServingGoesOn) {
  send(Arrival{request(1, 8, 30)});
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kW4)).ok());
  ready();
  end_step();
  apply();
  ASSERT_FALSE(device.preparing.empty());
  fail(0, "the variant is damaged");
  settle();
  EXPECT_EQ(sink.form->failures_total, 1);
  EXPECT_EQ(sink.form->form, device.form());
  EXPECT_EQ(sink.form->wanted, device.form());
  EXPECT_FALSE(sink.form->pinned);
  EXPECT_NE(device.form(), morph.start) << "what was committed before stays";
  const MorphHistory& history = *sink.form->history;
  EXPECT_TRUE(std::any_of(history.begin(), history.end(), [](const auto& record) {
    return record->failure == "the variant is damaged" && record->asked_ns > 0;
  }));
  EXPECT_EQ(device.pages_used(), device.pages_of(device.form()));
  EXPECT_EQ(sink.all<Finished>().at(0).reason, FinishReason::kLength);
}

TEST_F(EngineMorph, ARemarkOfAStepThatSucceededIsReported) {
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kBf16)).ok());
  MorphReady amiss = device.ready(0);
  amiss.remark = "packed anew";
  send(amiss);
  settle();
  EXPECT_EQ(sink.form->remarks_total, 1);
  EXPECT_EQ(sink.form->failures_total, 0);
  EXPECT_EQ(sink.form->history->front()->remark, "packed anew");
  EXPECT_EQ(sink.form->history->back()->remark, "");
}

TEST_F(EngineMorph, ANewWishAbortsUncommittedStepsAndLateAnswersChangeNothing) {
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kBf16)).ok());
  ASSERT_FALSE(device.preparing.empty());
  ASSERT_TRUE(wish(layers(Precision::kBf16, Precision::kW4)).ok());
  EXPECT_LT(place("abort layer 0 attention to w4"), place("prepare layer 1 attention to w4"));
  ready();  // the answer for the aborted step
  settle();
  EXPECT_EQ(device.form().layer_precision[0], (LayerPrecision{}));
  EXPECT_EQ(device.form().layer_precision[1], (LayerPrecision{Precision::kW4, Precision::kW4}));
  EXPECT_EQ(sink.form->form, device.form());
  EXPECT_EQ(sink.form->failures_total, 0);
  EXPECT_EQ(std::count(device.log.begin(), device.log.end(), "commit layer 0 attention to w4"), 0);
}

TEST_F(EngineMorph, AWishThatContinuesTheLastKeepsStepsInPreparation) {
  ASSERT_TRUE(wish({.layers = {{Precision::kW4, Precision::kBf16}, {}}, .kv_blocks = 10}).ok());
  ASSERT_TRUE(wish({.layers = {{Precision::kW4, Precision::kW4}, {}}, .kv_blocks = 10}).ok());
  EXPECT_EQ(std::count(device.log.begin(), device.log.end(), "prepare layer 0 attention to w4"), 1);
  EXPECT_EQ(place("abort layer 0 attention to w4"), std::ssize(device.log));
  settle();
  EXPECT_EQ(device.form().layer_precision[0], (LayerPrecision{Precision::kW4, Precision::kW4}));
}

TEST_F(EngineMorph, ReleaseRestoresTheFormAsLoadedIfThereIsNoPolicy) {
  ASSERT_TRUE(wish({.layers = {{Precision::kW4, Precision::kW4}, {}}, .kv_blocks = 4}).ok());
  settle();
  ASSERT_EQ(device.form().kv.blocks, 4);
  const Result<Morph> released = wish({.release = true});
  ASSERT_TRUE(released.ok());
  EXPECT_FALSE(released->steps.empty());
  EXPECT_FALSE(sink.form->pinned);
  settle();
  EXPECT_EQ(device.form(), morph.start);
  EXPECT_EQ(sink.observation.kv_blocks, morph.start.kv.blocks);
}

TEST_F(EngineMorph, ARequestThatOnlyAnOperatorsFormRefusesMayComeAgain) {
  ASSERT_TRUE(wish({.kv_blocks = 4}).ok());
  settle();
  send(Arrival{request(1, 40, 8)});  // 6 blocks
  ASSERT_EQ(sink.all<Refused>().size(), 1U);
  EXPECT_EQ(sink.all<Refused>()[0].error.code, ErrorCode::kUnavailable);
  EXPECT_NE(sink.all<Refused>()[0].error.message.find("operator"), std::string::npos);
  send(Arrival{request(2, 63, 30)});  // 12 blocks
  ASSERT_EQ(sink.all<Refused>().size(), 2U);
  EXPECT_EQ(sink.all<Refused>()[1].error.code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(wish({.release = true}).ok());
  settle();
  send(Arrival{request(3, 40, 8)});
  settle();
  EXPECT_EQ(sink.all<Finished>().size(), 1U);
}

TEST_F(EngineMorph, HistoryIsSharedAndNeverChanges) {
  ASSERT_TRUE(wish(layers(Precision::kW4, Precision::kBf16)).ok());
  settle();
  const std::shared_ptr<const MorphHistory> early = sink.form->history;
  const std::size_t told = early->size();
  const MorphRecord* const first = early->front().get();
  ASSERT_TRUE(wish({.release = true}).ok());
  EXPECT_EQ(sink.form->history, early) << "a status without a new record copies none";
  settle();
  for (int i = 0; i < 70; ++i) {
    ASSERT_TRUE(
        wish(layers(Precision::kBf16, i % 2 == 0 ? Precision::kW4 : Precision::kBf16)).ok());
    settle();
    if (i == 0) {
      EXPECT_EQ(sink.form->history->front().get(), first) << "records are shared";
    }
  }
  EXPECT_EQ(early->size(), told);
  EXPECT_EQ(early->front()->id, 1U);
  const MorphHistory& latest = *sink.form->history;
  EXPECT_EQ(latest.size(), 256U);
  for (std::size_t i = 1; i < latest.size(); ++i) {
    EXPECT_EQ(latest[i]->id, latest[i - 1]->id + 1) << "none is missing, in order";
  }
}

// Operators see the last tokens too, although nothing happens after them.
TEST_F(EngineMorph, TellsTheTokensThatEndedBeforeAQuietTime) {
  send(Arrival{request(1, 4, 2)});
  while (!device.work.empty()) {
    end_step();
  }
  const auto told = [&] {
    std::int64_t sum = 0;
    for (const TokensAt& at : sink.form->output_tokens) {
      sum += at.tokens;
    }
    return sum;
  };
  ASSERT_LT(told(), 2) << "there was no time to tell";
  const std::optional<TimeNs> next_ns = engine.next_deadline_ns();
  ASSERT_TRUE(next_ns);
  engine.handle({*next_ns, Tick{}});
  EXPECT_EQ(told(), 2);
}

TEST_F(EngineMorph, WishesThatCannotBeGrantedAreRefusedWithTheReason) {
  EXPECT_NE(error({.layers = {{}, {}, {}}}).find("names 3 layers, the model has 2"),
            std::string::npos);
  EXPECT_NE(error(layers(Precision::kBf16, Precision::kW8)).find("layer 1 attention at w8"),
            std::string::npos);
  EXPECT_NE(error({.kv_blocks = 11}).find("lacks 8.0"), std::string::npos)
      << error({.kv_blocks = 11});
  EXPECT_NE(error({.kv_blocks = 0}).find("1 to"), std::string::npos);
  EXPECT_NE(error({.kv_blocks = std::int64_t{1} << 60}).find("1 to"), std::string::npos);
  EXPECT_NE(error({.layers = {{}, {}}, .release = true}).find("wishes of their own"),
            std::string::npos);
  send(Arrival{request(1, 20, 30)});  // needs 7 blocks at its end
  EXPECT_NE(error({.kv_blocks = 5}).find("needs 7"), std::string::npos);
  EXPECT_FALSE(sink.form->pinned);
  EXPECT_TRUE(std::none_of(device.log.begin(), device.log.end(),
                           [](const auto& line) { return line != "step"; }));
  EXPECT_EQ(error({.kv_blocks = 7}), "granted");
  send(Arrival{request(2, 30, 30)});  // 8 blocks
  EXPECT_EQ(sink.all<Refused>().size(), 1U) << "blocks that are leaving are promised to no request";
  settle();
}

MorphConfig mixed_for_test() {
  MorphConfig config = morph_for_test(10);
  config.bounds.ladder = {Precision::kBf16, Precision::kW8};
  PageBudget& budget = config.bounds.budget;
  const std::int64_t reserve =
      reserve_pages(config.bounds.spec, config.bounds.ladder, budget.page_bytes);
  budget.pages += reserve - budget.reserve;
  budget.reserve = reserve;
  config.bounds.full.layer_precision[1] = {Precision::kW4, Precision::kW4};
  config.start = config.bounds.full;
  return config;
}

struct EngineMorphOfMixedLayers : EngineMorph {
  EngineMorphOfMixedLayers() : EngineMorph(mixed_for_test()) {}
};

TEST_F(EngineMorphOfMixedLayers, ALayerMayBeWhatItStartedAtThoughNoOtherMay) {
  EXPECT_NE(error(layers(Precision::kW4, Precision::kW4)).find("layer 0 attention at w4"),
            std::string::npos);
  EXPECT_EQ(error(layers(Precision::kW8, Precision::kW8)), "granted");
  settle();
  EXPECT_EQ(precision_label(device.form()), "w8:2");
  EXPECT_EQ(error(layers(Precision::kBf16, Precision::kW4)), "granted");
  settle();
  EXPECT_EQ(device.form().layer_precision, morph.start.layer_precision);
}

TEST_F(EngineMorph, WithoutMorphsAWishIsAnsweredToo) {
  EngineConfig config = engine_for_test(morph);
  config.morph.reset();
  RecordingSink heard;
  Engine still(config, device, heard);
  still.handle({1, WantForm{9, {}}});
  const auto answers = heard.all<WishAnswered>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].wish_id, 9U);
  EXPECT_FALSE(answers[0].morph.ok());
  EXPECT_EQ(heard.form, nullptr);
}

}  // namespace
}  // namespace protean
