#include "control/morph_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "control/scene_for_test.h"

namespace protean {
namespace {

// bf16 steps read weights for 7 ms and w8 steps for half of that; each token takes 50 us.
StepCost cost() {
  StepCost cost{.fixed_us = 1000, .token_us = 50};
  cost.of(Precision::kBf16).step_us = 7000;
  cost.of(Precision::kW8).step_us = 3500;
  cost.of(Precision::kW4).step_us = 1800;
  return cost;
}

// Requests of 256 + 128 tokens that have arrived at this rate for minutes.
Load load_of(double per_s) {
  return {.arrivals = {.per_s = per_s,
                       .most_per_s = 1.05 * per_s,
                       .lasts_s = 60,
                       .later_per_s = per_s,
                       .prompt_tokens = 256},
          .answer_tokens = 128,
          .running_prompt_tokens = 256,
          .running_drawn_tokens = 76};
}

struct Decide : testing::Test {
  MorphPolicy policy_of(MorphMode mode) const {
    return {options_for(mode), bounds, {.most_sequences = 64}};
  }
  static Situation at(const Form& form) {
    return {
        .committed = form, .heading = form, .kept_s = 100, .copy_bytes_per_s = 5e8, .failed = {}};
  }
  Form decided(const Load& load, const Form& form) const {
    const Decision decision = policy.decide(speed, load, at(form));
    return decision.wanted ? decision.wanted->form : form;
  }
  std::size_t place(const Form& form) const {
    const auto& path = policy.path();
    return static_cast<std::size_t>(std::find(path.begin(), path.end(), form) - path.begin());
  }

  const FormBounds bounds = bounds_for_test(16, 0.4);
  const MorphPolicy policy = policy_of(MorphMode::kBalanced);
  const StepSpeed speed{cost(), 512};
  const Form full = policy.path().front();
};

TEST_F(Decide, StaysWhereTheLoadIsCarried) {
  EXPECT_EQ(decided(load_of(0), full), full);
  EXPECT_EQ(decided(load_of(8), full), full);
}

TEST_F(Decide, LowersForALoadThatOnlyFewerBitsCarryAndNoFurtherThanThat) {
  const Form form = decided(load_of(24), full);
  EXPECT_GT(place(form), 0U);
  EXPECT_EQ(layers_at(form, Precision::kW4), 0);
  EXPECT_EQ(decided(load_of(24), form), form) << "and stays there";
  EXPECT_GT(place(decided(load_of(36), full)), place(form));
}

TEST_F(Decide, RestoresWhenTheLoadHasFallenAndNotBefore) {
  const Form low = decided(load_of(24), full);
  EXPECT_EQ(decided(load_of(8), low), full);
  EXPECT_EQ(decided(load_of(0), low), full) << "an idle replica has full precision";
  Load unsure = load_of(8);
  unsure.arrivals.most_per_s = 24;
  EXPECT_EQ(decided(unsure, low), low);
}

TEST_F(Decide, LowersNothingToAVariantThatIsNotPackedYet) {
  std::vector<SwapComponent> missing;
  for (int layer = 0; layer < bounds.spec.layers; ++layer) {
    for (const Component half : kLayerHalves) {
      missing.push_back({layer, half, Precision::kW8});
      missing.push_back({layer, half, Precision::kW4});
    }
  }
  missing.push_back({0, Component::kEmbeddings, Precision::kW8});
  Situation now = at(full);
  now.missing = missing;
  EXPECT_FALSE(policy.decide(speed, load_of(36), now).wanted);
  // All layers but the last two are packed at w8.
  const int packed = bounds.spec.layers - 2;
  std::erase_if(missing, [&](const SwapComponent& swap) {
    return swap.component != Component::kEmbeddings && swap.layer < packed &&
           swap.to == Precision::kW8;
  });
  now.missing = missing;
  const Decision some = policy.decide(speed, load_of(24), now);
  ASSERT_TRUE(some.wanted);
  EXPECT_GT(layers_at(some.wanted->form, Precision::kW8), 4);
  EXPECT_LE(layers_at(some.wanted->form, Precision::kW8), packed);
  EXPECT_EQ(some.wanted->form.embeddings, full.embeddings);
  // What has its precision already is not taken from it, and goes back up.
  now = at(policy.path().back());
  now.missing = missing;
  EXPECT_FALSE(policy.decide(speed, load_of(45), now).wanted);
  EXPECT_EQ(policy.decide(speed, load_of(2), now).wanted->form, full);
}

// The LM head takes most of a step's time, and layers could only go to 4 bits.
TEST_F(Decide, LowersTheEmbeddingsAloneIfThatPaysMore) {
  FormBounds two = bounds;
  two.ladder = {Precision::kBf16, Precision::kW4};
  const MorphPolicy careful(options_for(MorphMode::kAccuracy), two, {.most_sequences = 64});
  StepCost slow = cost();
  slow.logits_at(Precision::kBf16).step_us = 6000;
  slow.logits_at(Precision::kW8).step_us = 1000;
  bool alone = false;
  for (double per_s = 6; per_s < 24; ++per_s) {
    const Decision decision = careful.decide({slow, 512}, load_of(per_s), at(full));
    if (!decision.wanted || decision.wanted->form.layer_precision != full.layer_precision) {
      continue;
    }
    alone = true;
    EXPECT_EQ(decision.wanted->form.embeddings, Precision::kW8);
    Situation crowded = at(full);
    crowded.needed_blocks = full.kv.blocks;
    const auto other = careful.decide({slow, 512}, load_of(per_s), crowded).wanted;
    EXPECT_TRUE(!other || other->form.layer_precision != full.layer_precision)
        << "KV has no room for the new variant in addition to the old one";
    EXPECT_EQ(careful.ways_down({slow, 512}, crowded).size() + 1,
              careful.ways_down({slow, 512}, at(full)).size());
  }
  EXPECT_TRUE(alone);
}

// All layers are at 8 bits, and the embeddings may follow.
TEST_F(Decide, LowersTheEmbeddingsAfterTheLayersIfKvHasRoomForTheirVariant) {
  StepCost slow = cost();
  slow.logits_at(Precision::kBf16).step_us = 6000;
  slow.logits_at(Precision::kW8).step_us = 1000;
  Form layers = path_to(bounds, Precision::kW8).back();
  ASSERT_EQ(layers.embeddings, Precision::kW8);
  layers.embeddings = full.embeddings;
  const Situation now = at(with_fitting_kv(bounds, layers));
  Situation crowded = now;
  crowded.needed_blocks = now.heading.kv.blocks;
  const auto lowers_embeddings = [&](double per_s, const Situation& there) {
    const auto wanted = policy.decide({slow, 512}, load_of(per_s), there).wanted;
    return wanted && wanted->form.layer_precision == layers.layer_precision;
  };
  int lowered = 0;
  for (double per_s = 10; per_s < 40; ++per_s) {
    lowered += lowers_embeddings(per_s, now) ? 1 : 0;
    EXPECT_FALSE(lowers_embeddings(per_s, crowded)) << per_s << " a second";
  }
  EXPECT_GT(lowered, 0);
}

// Half of the layers at 4 bits have an eighth of their bytes to read, all at 8 bits a half.
TEST_F(Decide, WeighsAFormBesideThePathThatIsReachedSooner) {
  const auto forms = policy.decide(speed, load_of(24), at(full)).predictions;
  const auto half = std::find_if(forms.begin(), forms.end(), [](const FormPrediction& form) {
    return form.precision == "bf16:8+w4:8";
  });
  ASSERT_NE(half, forms.end());
  const auto all = std::find_if(forms.begin(), forms.end(), [](const FormPrediction& form) {
    return form.precision == "w8:16";
  });
  ASSERT_NE(all, forms.end());
  EXPECT_GT(half->morph_s, 0);
  EXPECT_LT(2 * half->morph_s, all->morph_s);
  // It is no way down from there.
  const auto at_eight =
      policy.explain(speed, load_of(36), at(path_to(bounds, Precision::kW8).back())).predictions;
  EXPECT_EQ(std::count_if(at_eight.begin(), at_eight.end(),
                          [](const FormPrediction& form) {
                            return form.precision == "bf16:8+w4:8" &&
                                   form.verdict ==
                                       "loses more and has less KV than the present form";
                          }),
            1);
}

// From half of the layers at 4 bits to all at 8, some layers are lowered first.
TEST_F(Decide, AWayUpThatLowersSomeLayersTakesNoKvInUse) {
  FormBounds none_free = bounds;
  none_free.budget.pages -= none_free.budget.reserve;
  none_free.budget.reserve = 0;
  const MorphPolicy tight(options_for(MorphMode::kBalanced), none_free, {.most_sequences = 64});
  Situation now = at(forms_off_path(none_free, tight.path()).back());
  const auto verdict = [&] {
    const auto forms = tight.explain(speed, load_of(24), now).predictions;
    const auto eight = std::find_if(forms.begin(), forms.end(), [](const FormPrediction& form) {
      return form.precision == "w8:16";
    });
    return eight == forms.end() ? "not weighed" : eight->verdict;
  };
  ASSERT_EQ(precision_label(now.heading), "bf16:8+w4:8");
  EXPECT_EQ(verdict(), "chosen");
  now.needed_blocks = now.heading.kv.blocks;
  EXPECT_EQ(verdict(), "KV in use would not fit during the morph");
}

// With a target for each token, all requests of a form are late or none, and at more arrivals two
// forms may be late alike.
TEST_F(Decide, DoesNotGoUpOnlyToComeBackAtOnce) {
  for (const int tpot_ms : {10, 13, 17}) {
    PolicyOptions options = options_for(MorphMode::kBalanced);
    options.tpot_ns = tpot_ms * kNsPerMs;
    const MorphPolicy steady(options, bounds, {.most_sequences = 64});
    for (double per_s = 2; per_s < 40; per_s += 2) {
      for (std::size_t from = 1; from < steady.path().size(); from += 5) {
        const Form& low = steady.path()[from];
        const auto up = steady.decide(speed, load_of(per_s), at(low)).wanted;
        if (up && !up->lowers) {
          const auto next = steady.decide(speed, load_of(per_s), at(up->form)).wanted;
          EXPECT_TRUE(!next || next->form != low) << per_s << " a second, " << tpot_ms << " ms";
        }
      }
    }
  }
}

// Rates are known for at most 223 s.
TEST_F(Decide, GoesBackThoughTheWayTakesLongerThanRatesAreKnown) {
  const Form low = policy.path().back();
  Load idle = load_of(0);
  idle.arrivals.lasts_s = 223;
  Situation now = at(low);
  now.kept_s = 1e6;
  now.copy_bytes_per_s = 1000;
  EXPECT_EQ(policy.decide(speed, idle, now).wanted->form, full);
  now.kept_s = 59;
  EXPECT_FALSE(policy.decide(speed, idle, now).wanted);
}

// Forms that are followed for as long as the load stays lead to one that stays.
TEST_F(Decide, GoesRoundInNoCircle) {
  for (const int waiting : {0, 10, 30, 100}) {
    for (double per_s = 2; per_s < 48; per_s += 2) {
      Load load = load_of(per_s);
      load.waiting = prompt_work(256) * waiting;
      for (std::size_t from = 0; from < policy.path().size(); from += 4) {
        Form form = policy.path()[from];
        int changes = 0;
        for (Form next = decided(load, form); next != form && changes < 6; ++changes) {
          form = std::exchange(next, decided(load, next));
        }
        EXPECT_LT(changes, 4) << per_s << " a second, " << waiting << " wait, from " << from;
      }
    }
  }
}

// Requests that already wait and would be late are reason enough, without further arrivals.
TEST_F(Decide, LowersForRequestsThatWait) {
  Load load = load_of(1);
  load.waiting = prompt_work(256) * 200;
  EXPECT_NE(decided(load, full), full);
}

// A burst is expected to go on for as long as it has lasted.
TEST_F(Decide, ABurstHasToLastBeforeItIsAReason) {
  Load load = load_of(24);
  load.arrivals.later_per_s = 2;
  load.arrivals.lasts_s = 0.5;
  EXPECT_EQ(decided(load, full), full);
  load.arrivals.lasts_s = 30;
  EXPECT_NE(decided(load, full), full);
}

TEST_F(Decide, KeepsAFormAsLongAsGettingThereAndBackTakes) {
  const Form low = policy.path().back();
  Situation now = at(low);
  const double there_and_back_s = policy.seconds(low, full, now.copy_bytes_per_s) +
                                  policy.seconds(full, low, now.copy_bytes_per_s);
  now.kept_s = 0;
  EXPECT_FALSE(policy.decide(speed, load_of(2), now).wanted);
  now.kept_s = 1.1 * there_and_back_s;
  EXPECT_TRUE(policy.decide(speed, load_of(2), now).wanted);
}

// At 36 a second, only 4 bits serve all in time.
TEST_F(Decide, ModesTradeQualityForLateRequests) {
  const auto lost = [&](MorphMode mode) {
    const Decision decision = policy_of(mode).decide(speed, load_of(45), at(full));
    return decision.wanted ? kl_nats(typical_loss(), bounds, decision.wanted->form) : 0.0;
  };
  EXPECT_LE(lost(MorphMode::kAccuracy), lost(MorphMode::kBalanced));
  EXPECT_LE(lost(MorphMode::kBalanced), lost(MorphMode::kPerformance));
  EXPECT_LT(lost(MorphMode::kAccuracy), lost(MorphMode::kPerformance));
}

TEST_F(Decide, AFormThatCannotHoldTheLongestRequestIsLeftAtOnce) {
  Load load = load_of(0.01);
  load.largest_tokens = 16 * static_cast<double>(full.kv.blocks) + 100;
  load.waiting = prompt_work(load.largest_tokens);
  const Form form = decided(load, full);
  EXPECT_GE(form.kv.blocks * 16, load.largest_tokens);
  EXPECT_EQ(decided(load, form), form) << "as long as the request is there";
  load = load_of(0.01);
  load.decoding = 1;
  load.context_tokens = load.largest_tokens = 1000;
  load.largest_left_tokens = 100'000;
  EXPECT_EQ(decided(load, form), full) << "what an answer may have in the end is no need now";
}

// The floor was raised while the form was below it.
TEST_F(Decide, AFormBelowTheQualityFloorIsLeftAtOnce) {
  FormBounds half = bounds;
  half.floor.most_lowered_layers = 8;
  const MorphPolicy bounded(options_for(MorphMode::kBalanced), half, {.most_sequences = 64});
  Situation now = at(policy.path().back());
  now.kept_s = 0;
  const Decision decision = bounded.decide(speed, load_of(45), now);
  ASSERT_TRUE(decision.wanted);
  EXPECT_TRUE(above_floor(half, decision.wanted->form));
  EXPECT_NE(decision.wanted->form, full) << "which would make more requests late";
}

// Lower forms compute prompts slower, so full precision is the best way out of a burst at w8. That
// it would be late if the burst went on for a minute is no reason for w4, which is late at once.
TEST_F(Decide, ALowerFormHasToPayAgainstFullPrecisionTooIfThatIsABetterWayOut) {
  StepCost slow = cost();
  slow.token_us = 0;
  for (const auto& [precision, token_us] :
       {std::pair{Precision::kBf16, 30}, {Precision::kW8, 120}, {Precision::kW4, 60}}) {
    slow.of(precision).token_us = slow.of(precision).more_token_us = token_us;
  }
  Load load = load_of(19);
  load.arrivals.lasts_s = 5;
  load.arrivals.later_per_s = 2;
  load.arrivals.prompt_tokens = load.running_prompt_tokens = 1000;
  load.answer_tokens = 2;
  load.running_drawn_tokens = 1;
  const Form eight = path_to(bounds, Precision::kW8).back();
  const auto decided_at = [&](const MorphPolicy& of) {
    const Decision decision = of.decide({slow, 512}, load, at(eight));
    return decision.wanted ? decision.wanted->form : eight;
  };
  EXPECT_EQ(decided_at(policy), full);
  const auto forms = policy.decide({slow, 512}, load, at(eight)).predictions;
  ASSERT_EQ(forms[1].verdict, "chosen");
  EXPECT_GT(forms[1].cost_most, forms.back().cost_most) << "a minute against a burst's seconds";
  FormBounds lower_only = bounds;
  lower_only.full = eight;
  lower_only.ladder = {Precision::kW8, Precision::kW4};
  const MorphPolicy without(options_for(MorphMode::kBalanced), lower_only, {.most_sequences = 64});
  EXPECT_GT(layers_at(decided_at(without), Precision::kW4), 0) << "which pays without it";
}

TEST_F(Decide, ASwapThatFailedIsLeftOutAndTheOthersGoOn) {
  Situation now = at(full);
  now.failed = {{.layer = 0, .component = Component::kMlp, .to = Precision::kW8}};
  const Decision decision = policy.decide(speed, load_of(24), now);
  ASSERT_TRUE(decision.wanted);
  EXPECT_EQ(decision.wanted->form.layer_precision[0].mlp, Precision::kBf16);
  EXPECT_EQ(decision.wanted->form.layer_precision[0].attention, Precision::kW8);
}

TEST_F(Decide, ShowsWhatItPredictsForEachForm) {
  const Decision decision = policy.decide(speed, load_of(24), at(full));
  ASSERT_GT(decision.predictions.size(), 7U);
  const FormPrediction& stay = decision.predictions.front();
  EXPECT_EQ(stay.kv_blocks, full.kv.blocks);
  EXPECT_GT(stay.late_most, stay.late);
  EXPECT_GT(stay.late, 10);
  EXPECT_EQ(stay.kl_nats, 0);
  EXPECT_NE(decision.wanted->reason.find("would be late"), std::string::npos);
  EXPECT_EQ(stay.verdict, "replaced by the chosen form");
  EXPECT_EQ(std::count_if(decision.predictions.begin(), decision.predictions.end(),
                          [](const FormPrediction& form) { return form.verdict == "chosen"; }),
            1);
  for (const FormPrediction& form : decision.predictions) {
    EXPECT_GE(form.cost, form.late);
    EXPECT_GE(form.cost_most, form.late_most);
    EXPECT_FALSE(form.verdict.empty());
    EXPECT_EQ(form.morph_s > 0, &form != &stay);
  }
}

TEST_F(Decide, ShowsWhyNoOtherFormIsTaken) {
  const Decision quiet = policy.explain(speed, load_of(8), at(full));
  EXPECT_FALSE(quiet.wanted);
  ASSERT_GT(quiet.predictions.size(), 7U) << "also when nothing is late";
  EXPECT_EQ(quiet.predictions.front().verdict, "chosen");
  EXPECT_EQ(quiet.predictions.back().verdict, "does not save a request and a fifth of the cost");
  Situation now = at(policy.path().back());
  now.kept_s = 0;
  EXPECT_NE(
      policy.decide(speed, load_of(2), now).predictions[1].verdict.find("to get there and back"),
      std::string::npos);
  now = at(policy.path().back());
  now.needed_blocks = now.committed.kv.blocks;
  EXPECT_EQ(policy.decide(speed, load_of(2), now).predictions[1].verdict,
            "KV in use would not fit during the morph");
}

TEST_F(Decide, WeighsNoOtherFormIfNoneCanBeBetter) {
  EXPECT_TRUE(policy.decide(speed, load_of(8), at(full)).predictions.empty());
  EXPECT_FALSE(policy.decide(speed, load_of(24), at(full)).predictions.empty());
  EXPECT_FALSE(policy.decide(speed, load_of(8), at(policy.path().back())).predictions.empty());
  for (double per_s = 0; per_s < 40; per_s += 2) {
    const auto brief = policy.decide(speed, load_of(per_s), at(full)).wanted;
    const auto thorough = policy.explain(speed, load_of(per_s), at(full)).wanted;
    ASSERT_EQ(brief.has_value(), thorough.has_value()) << per_s;
    EXPECT_TRUE(!brief || brief->form == thorough->form) << per_s;
  }
}

TEST_F(Decide, ShowsByWhichNumbersThePresentFormIsKept) {
  Load unsure = load_of(8);
  unsure.arrivals.most_per_s = 24;
  const Form low = decided(load_of(24), full);
  const auto forms = policy.decide(speed, unsure, at(low)).predictions;
  ASSERT_TRUE(forms.front().late_lasting.has_value());
  ASSERT_EQ(forms[1].verdict,
            "would make more requests late if the most arrivals lasted for a minute");
  EXPECT_GE(forms[1].late_lasting.value_or(0), forms.front().late_lasting.value_or(0) + kLeastLate);
  EXPECT_FALSE(forms.back().late_lasting) << "lower forms have to pay while the arrivals last";
  EXPECT_FALSE(policy.explain(speed, unsure, at(full)).predictions.front().late_lasting);
}

TEST_F(Decide, ThePapersRuleGoesOneLayerAtATime) {
  PaperRule rule;
  for (int i = 0; i < 3; ++i) {
    rule.step_done({.oldest_wait_ns = kNsPerS, .kv_blocks = full.kv.blocks});
  }
  EXPECT_EQ(place(policy.decide(rule, at(full)).value().form), 1U);
  EXPECT_FALSE(policy.decide(rule, at(policy.path().back())));
}

// A model of 80 layers, halves apart, has several hundred forms.
TEST_F(Decide, LooksAtFewFormsOfMany) {
  FormBounds many = bounds_for_test(80, 0.4);
  many.order = swap_targets(80, true);
  const MorphPolicy deep(options_for(MorphMode::kBalanced), many, {.most_sequences = 64});
  ASSERT_GT(deep.path().size(), 200U);
  EXPECT_LT(deep.decide(speed, load_of(24), at(deep.path().front())).predictions.size(), 40U);
}

}  // namespace
}  // namespace protean
