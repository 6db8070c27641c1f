#include "replica/fingerprint.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "cost/configuration_cost.h"
#include "cost/memory.h"
#include "cost/step_sizes.h"
#include "device/cpu/team.h"
#include "model/random_checkpoint.h"

namespace protean {
namespace {

ModelSpec tiny(int layers) {
  ModelSpec spec{.architecture = "test",
                 .layers = layers,
                 .hidden = 64,
                 .ffn = 128,
                 .vocab = 300,
                 .max_context = 512};
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  return spec;
}

Fingerprint fingerprint_of(const ModelSpec& spec, std::vector<Precision> layers) {
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, spec, 1);
  const auto found =
      measure_fingerprint(checkpoint, {.layers = std::move(layers), .kv = {}, .budget_s = 0});
  EXPECT_TRUE(found.ok()) << found.error().message;
  return found.ok() ? *found : Fingerprint();
}

TEST(Fingerprint, KnowsEveryPrecisionAndTheMemoryOfTheWholeModel) {
  const ModelSpec spec = tiny(5);
  const std::vector<Precision> layers = {Precision::kBf16, Precision::kW8, Precision::kW4};
  const Fingerprint found = fingerprint_of(spec, layers);
  ASSERT_EQ(found.models.size(), 3U);
  for (const ModelEstimate& model : found.models) {
    SCOPED_TRACE(to_string(model.precision));
    StepPrecision whole{.embeddings = default_embeddings_precision(model.precision)};
    whole.layers[index_of(model.precision)] = 1;
    EXPECT_TRUE(covers(found.cost, whole));
    const Form form = single_device_form(spec, model.precision, DeviceId{0}, {});
    EXPECT_EQ(model.weight_bytes, weight_bytes(spec, form));
    EXPECT_EQ(model.kv_token_bytes, kv_token_bytes(spec, KvPrecision::kBf16));
  }
  EXPECT_GT(found.cost.copy_bytes_per_us, 0);
}

TEST(Fingerprint, AModelMayHaveOneLayerAndAShortContext) {
  for (const int context : {2, 48, 65, 300}) {
    SCOPED_TRACE(context);
    ModelSpec spec = tiny(1);
    spec.max_context = context;
    const Fingerprint one = fingerprint_of(spec, {Precision::kW4});
    EXPECT_EQ(one.layers, 1);
    EXPECT_TRUE(one.cost.of(Precision::kW4).is_known());
  }
}

// Returns the most positions that a step of a fingerprint attends to with each of its rows, and in
// all.
std::pair<double, double> most_attended(const ModelSpec& spec) {
  double of_row = 0;
  double of_step = 0;
  for (const TimedStep& step : fingerprint_of(spec, {Precision::kBf16}).steps) {
    if (step.work.tokens == step.work.sequences) {
      of_row = std::max(of_row, step.work.kv_tokens / step.work.sequences);
      of_step = std::max(of_step, step.work.kv_tokens);
    }
  }
  return {of_row, of_step};
}

TEST(Fingerprint, DecodesAreAsLongAsLayersSee) {
  ModelSpec spec = tiny(2);
  spec.max_context = 1 << 20;
  EXPECT_EQ(most_attended(spec), std::pair(2048.0, 16384.0));
  spec.attention.sliding_window = 256;
  const auto [of_row, of_step] = most_attended(spec);
  EXPECT_GE(of_row, 256);
  EXPECT_GE(of_step, 16384) << "more sequences make up for the window";
}

// Times that are off by 3 % may not lead to a cost that is far off where a server's steps read more
// KV than any step of the fingerprint.
TEST(Fingerprint, NoiseDoesNotDecideWhatKvCosts) {
  ModelSpec spec = tiny(4);
  spec.max_context = 2048;
  const std::vector<Precision> layers = {Precision::kBf16};
  std::vector<TimedStep> steps = fingerprint_of(spec, layers).steps;
  StepCost truth{.fixed_us = 50,
                 .token_us = 5,
                 .context_token_us = 0.075,
                 .sequence_us = 50,
                 .kv_token_us = 0.075,
                 .far_kv_token_us = 0.075,
                 .near_kv_tokens = 4096};
  truth.of(Precision::kBf16) = {
      .step_us = 3000, .token_us = 1300, .more_token_us = 500, .tile_us = 3000, .bend_tokens = 4};
  truth.logits_at(Precision::kBf16) = {.step_us = 1500, .row_us = 100};
  const StepWork work = work_of(plan_of(decode_sizes(64, 1000), spec.vocab, 16));
  const StepPrecision all = steps.front().precision;
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 0.03);
  constexpr int kRounds = 12;
  double error = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (TimedStep& step : steps) {
      step.us = predict_us(truth, step.work, step.precision) * std::exp(noise(random));
    }
    const auto cost = fit_step_cost(steps);
    ASSERT_TRUE(cost.ok()) << cost.error().message;
    error += std::abs(predict_us(*cost, work, all) / predict_us(truth, work, all) - 1) / kRounds;
  }
  EXPECT_LT(error, 0.08);
}

// Returns the cost of a fingerprint with two devices that would share layers.
StepCost cost_on_two_devices(const ModelSpec& spec, std::int64_t page_bytes = 0) {
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, spec, 1);
  const auto found = measure_fingerprint(checkpoint, {.layers = {Precision::kBf16, Precision::kW4},
                                                      .kv = {},
                                                      .page_bytes = page_bytes,
                                                      .sharing = {CpuShare(), CpuShare()},
                                                      .budget_s = 0});
  EXPECT_TRUE(found.ok()) << found.error().message;
  return found.ok() ? found->cost : StepCost();
}

TEST(Fingerprint, MeasuresSumsAmongTwoDevices) {
  constexpr std::array kTimed = {Precision::kBf16, Precision::kW4};
  EXPECT_TRUE(knows_sums(cost_on_two_devices(tiny(3)), kTimed));
  EXPECT_TRUE(knows_sums(cost_on_two_devices(tiny(1), 4096), kTimed));
  ModelSpec over_heads = tiny(2);
  over_heads.attention.qk_norm = true;
  over_heads.attention.qk_norm_over_heads = true;
  EXPECT_TRUE(knows_sums(cost_on_two_devices(over_heads), kTimed));
  const StepCost alone = fingerprint_of(tiny(3), {Precision::kBf16}).cost;
  EXPECT_FALSE(knows_sums(alone, std::array{Precision::kBf16}));
  ModelSpec one_head = tiny(3);
  one_head.attention.kv_heads = 1;
  EXPECT_FALSE(knows_sums(cost_on_two_devices(one_head), kTimed)) << "it cannot be divided";
}

TEST(Fingerprint, PausesBeforeEachStep) {
  const ModelSpec spec = tiny(3);
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, spec, 1);
  std::size_t pauses = 0;
  const auto found = measure_fingerprint(
      checkpoint, {.layers = {Precision::kBf16},
                   .kv = {},
                   .budget_s = 0,
                   .harvest = {.await_turn = [&] { return ++pauses > 0; }, .quiet = {}}});
  ASSERT_TRUE(found.ok()) << found.error().message;
  // Each of the three layers' two components and the embeddings, the first step, those that settle
  // the caches, and each timed run: steps of few tokens have two.
  EXPECT_GE(pauses, found->steps.size() + 7);
  EXPECT_EQ(found->disturbed_steps, 0);
}

TEST(Fingerprint, EndsWhenItIsToldTo) {
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, tiny(3), 1);
  for (const int turns : {0, 3, 12, 40}) {  // while it loads, and while it times steps
    int left = turns;
    const auto found = measure_fingerprint(
        checkpoint, {.layers = {Precision::kBf16},
                     .kv = {},
                     .budget_s = 0,
                     .harvest = {.await_turn = [&] { return left-- > 0; }, .quiet = {}}});
    ASSERT_FALSE(found.ok()) << turns;
    EXPECT_EQ(found.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(left, -1) << "it asks for no further turn";
  }
}

TEST(Fingerprint, TheFitEndsWhenItIsToldToWithoutWaitingForATurn) {
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, tiny(3), 1);
  int looks = 0;
  const auto found = measure_fingerprint(
      checkpoint,
      {.layers = {Precision::kBf16},
       .kv = {},
       .budget_s = 0,
       .harvest = {.await_turn = {}, .quiet = {}, .goes_on = [&] { return ++looks < 3; }}});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(looks, 3);
}

// Measures a fingerprint while requests come in the first `busy` looks.
Result<Fingerprint> measure_beside(int busy, std::vector<double>& kept_us, double patience_s = 60) {
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, tiny(3), 1);
  std::uint64_t looks = 0;
  const auto many = static_cast<std::uint64_t>(busy);
  return measure_fingerprint(
      checkpoint, {.layers = {Precision::kBf16},
                   .kv = {},
                   .budget_s = 0,
                   .harvest = {.await_turn = [] { return true; },
                               .quiet = [&] { return std::optional(std::min(looks++, many)); }},
                   .patience_s = patience_s,
                   .keep_us = [&](const std::string&, double us) { kept_us.push_back(us); }});
}

TEST(Fingerprint, TimesDuringWhichRequestsComeAreDiscarded) {
  std::vector<double> alone;
  const auto undisturbed = measure_beside(0, alone);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.error().message;
  std::vector<double> later;
  const auto found = measure_beside(100, later);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->disturbed_steps, 0) << "each step was timed again";
  EXPECT_EQ(later.size(), alone.size());
  std::vector<double> none;
  const auto always = measure_beside(1 << 30, none, 0.01);
  ASSERT_TRUE(always.ok()) << "under a load that never ends it ends too";
  EXPECT_EQ(static_cast<std::size_t>(always->disturbed_steps), always->steps.size() + 4)
      << "the steps, three after a pause, and the speed of copies";
  EXPECT_TRUE(none.empty());
}

// Measures a fingerprint, with a request in every so many looks after a turn, which is more than a
// run takes. Returns the number of turns.
int turns_with_requests(bool requests) {
  constexpr int kLooksOfRuns = 20;
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, tiny(1), 1);
  int turns = 0;
  int looks = 0;
  std::uint64_t came = 0;
  const auto await_turn = [&] {
    looks = 0;
    return ++turns > 0;
  };
  const auto quiet = [&] {
    came += requests && ++looks % kLooksOfRuns == 0 ? 1 : 0;
    return std::optional(came);
  };
  const auto found = measure_fingerprint(
      checkpoint,
      {.layers = {Precision::kBf16},
       .kv = {},
       .budget_s = 0,
       .harvest = {.await_turn = await_turn,
                   .quiet = quiet,
                   .told = [&](const FingerprintProgress& now) { EXPECT_EQ(now.discarded, 0); }}});
  EXPECT_TRUE(found.ok()) << found.error().message;
  return turns;
}

TEST(Fingerprint, TheFitWaitsForRequestsToo) {
  EXPECT_GT(turns_with_requests(true), turns_with_requests(false) + 2);
}

// A checkpoint whose files were written after it was opened. Reading it may end the process.
class WrittenCheckpoint final : public Checkpoint {
 public:
  const ModelSpec& spec() const override { return spec_; }
  const GenerationDefaults& generation() const override { return generation_; }
  std::string description() const override { return "written"; }
  void read_rows(TensorRole, int, std::int64_t, std::int64_t, float*) const override {
    ADD_FAILURE() << "it is read";
  }
  Status unchanged() const override { return make_error(ErrorCode::kCorrupt, "it was written"); }
  void release(TensorRole, int) const override {}

 private:
  const ModelSpec spec_ = tiny(2);
  const GenerationDefaults generation_ = {};
};

TEST(Fingerprint, FilesThatWereWrittenSinceTheyWereOpenedAreNotRead) {
  const auto found = measure_fingerprint(WrittenCheckpoint(), {.layers = {Precision::kBf16}});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace protean
