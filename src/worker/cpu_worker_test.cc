#include "worker/cpu_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "cost/memory.h"
#include "model/synthetic_checkpoint.h"

namespace protean {
namespace {

// Runs a plan on a device that is always alone.
StepResult run_alone(Rank& rank, const StepPlan& plan, const LogitsTap& tap = {}) {
  return rank.run(plan.id.value, {&plan, 1}, tap).at(0).result;
}

ModelSpec small_spec() {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = 2;
  spec.hidden = 32;
  spec.ffn = 48;
  spec.vocab = 70;
  spec.max_context = 256;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 8};
  return spec;
}

WorkerOptions small_options(const ModelSpec& spec) {
  const KvForm kv{.precision = KvPrecision::kBf16, .block_tokens = 4, .blocks = 64};
  return {.form = single_device_form(spec, Precision::kBf16, DeviceId{0}, kv),
          .devices = {{.threads = 2}},
          .max_step_tokens = 200,
          .max_positions = 128};
}

// Plans tokens [first, first + count) of one sequence in blocks 0, 1, ..., with a greedy draw after
// the last.
StepPlan plan_of(std::uint64_t id, int first, std::vector<TokenId> tokens) {
  const int count = static_cast<int>(tokens.size());
  const int blocks = (first + count + 3) / 4;
  StepPlan plan{.id = StepId{id}, .tokens = std::move(tokens)};
  for (int block = 0; block < blocks; ++block) {
    plan.blocks.push_back(block);
  }
  plan.slices.push_back({.first_position = first,
                         .token_begin = 0,
                         .token_count = count,
                         .block_begin = 0,
                         .block_count = blocks,
                         .sample = 0});
  plan.samples.push_back({{.temperature = 0.0F}, first + count});
  return plan;
}

TEST(CpuWorker, RunsStepsInOrderOnItsOwnThreadAndReportsEachOnce) {
  const SyntheticCheckpoint checkpoint(small_spec());
  std::mutex mutex;
  std::vector<StepResult> results;
  std::thread::id worker_thread;
  auto worker =
      CpuWorker::create(small_options(small_spec()), checkpoint, {}, [&](StepResult result) {
        const std::lock_guard lock(mutex);
        worker_thread = std::this_thread::get_id();
        results.push_back(std::move(result));
      });
  ASSERT_TRUE(worker.ok()) << worker.error().message;
  (*worker)->start(plan_of(1, 0, {1, 2, 3, 4, 5}));
  for (int i = 0; i < 20; ++i) {
    (*worker)->start(plan_of(static_cast<std::uint64_t>(i) + 2, 5 + i, {i}));
  }
  worker->reset();  // finishes the steps that were started
  ASSERT_EQ(results.size(), 21U);
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].id.value, i + 1);
    ASSERT_EQ(results[i].sampled.size(), 1U);
    EXPECT_FALSE(results[i].failure.has_value());
  }
  EXPECT_NE(worker_thread, std::this_thread::get_id());
}

// Lets steps begin one at a time, and notes what it is told.
struct NotedTurn final : StepTurn {
  void want() override { note("want "); }
  void rest() override { note("rest "); }
  void begin() override {
    now_waits = true;
    may_begin.acquire();
    now_waits = false;
    note("begin ");
  }
  bool waits() const override { return now_waits; }
  void end(TimeNs) override { note("end "); }
  void let_go() override {
    note("let go ");
    may_begin.release(2);
  }
  void note(const char* what) {
    const std::lock_guard lock(mutex);
    noted += what;
  }
  std::string take() {
    const std::lock_guard lock(mutex);
    return std::exchange(noted, {});
  }
  std::counting_semaphore<> may_begin{0};
  std::atomic<bool> now_waits = false;
  std::mutex mutex;
  std::string noted;
};

TEST(CpuWorker, AStepWaitsForItsTurnUntilTheWorkerStops) {
  const SyntheticCheckpoint checkpoint(small_spec());
  const auto turn = std::make_shared<NotedTurn>();
  WorkerOptions options = small_options(small_spec());
  options.devices.front().turn = turn;
  std::counting_semaphore<> done(0);
  auto worker = CpuWorker::create(options, checkpoint, {}, [&](StepResult) { done.release(); });
  ASSERT_TRUE(worker.ok()) << worker.error().message;
  (*worker)->start(plan_of(1, 0, {1, 2, 3}));
  EXPECT_FALSE(done.try_acquire());
  EXPECT_EQ(turn->take(), "want ");
  while (!(*worker)->awaits_turn()) {
    std::this_thread::yield();
  }
  turn->may_begin.release();
  done.acquire();
  (*worker)->rest();
  EXPECT_EQ(turn->take(), "begin end rest ");
  (*worker)->start(plan_of(2, 3, {4}));
  worker->reset();
  done.acquire();
  EXPECT_EQ(turn->take().find("want let go "), 0U);
}

TEST(CpuWorker, AStepInWhichADeviceIsGivenUpCountsAsNone) {
  const SyntheticCheckpoint checkpoint(small_spec());
  const auto turn = std::make_shared<NotedTurn>();
  WorkerOptions options = small_options(small_spec());
  options.devices.front().turn = turn;
  auto worker = CpuWorker::create(options, checkpoint, {}, [](const StepResult&) {});
  ASSERT_TRUE(worker.ok()) << worker.error().message;
  (*worker)->start(plan_of(1, 0, {1, 2, 3}));
  while (!(*worker)->awaits_turn()) {
    std::this_thread::yield();
  }
  (*worker)->give_up();
  worker->reset();
  const std::string noted = turn->take();
  EXPECT_NE(noted.find("begin "), std::string::npos) << noted;
  EXPECT_EQ(noted.find("end "), std::string::npos) << noted;
}

// A model whose rows overflow after token 9 and no other: only that token's embedding reaches the
// first column, and the final norm scales it beyond what a float holds.
class OverflowingCheckpoint : public SyntheticCheckpoint {
 public:
  using SyntheticCheckpoint::SyntheticCheckpoint;
  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    SyntheticCheckpoint::read_rows(role, layer, row, count, out);
    const std::int64_t width = row_length(role);
    for (std::int64_t i = 0; i < count; ++i) {
      float* const first = out + i * width;
      if (role == TensorRole::kEmbedding) {
        *first = row + i == 9 ? 4.0F : 0.0F;
      } else if (row + i == 0 && role == TensorRole::kFinalNorm) {
        *first = 3e38F;
      } else if (row + i == 0 &&
                 (role == TensorRole::kAttentionOutput || role == TensorRole::kDown)) {
        std::fill_n(first, width, 0.0F);
      }
    }
  }
};

TEST(CpuWorker, RequestsWithNaNOrInfinityFailAlone) {
  ModelSpec spec = small_spec();
  spec.tied_embeddings = false;
  const OverflowingCheckpoint checkpoint(spec);
  std::vector<StepResult> results;
  auto worker = CpuWorker::create(small_options(spec), checkpoint, {},
                                  [&](StepResult result) { results.push_back(std::move(result)); });
  ASSERT_TRUE(worker.ok()) << worker.error().message;
  StepPlan plan{.id = StepId{1}, .tokens = {1, 2, 1, 9, 2, 9, 1, 9}, .blocks = {0, 1, 2, 3}};
  const auto slice = [&](std::uint64_t request, int sample) {
    const int number = static_cast<int>(plan.slices.size());
    plan.slices.push_back({.request = RequestId{request},
                           .token_begin = 2 * number,
                           .token_count = 2,
                           .block_begin = number,
                           .block_count = 1,
                           .sample = sample});
  };
  slice(11, 0);
  slice(12, 1);
  slice(13, -1);
  slice(14, -1);
  plan.samples = {{.position = 2}, {.position = 2}};
  plan.slices[2].score_count = 1;
  plan.scores = {{.after = 5, .token = 3}};
  plan.slices[3].pooling = Pooling::kMean;
  (*worker)->start(plan);
  plan.id = StepId{2};
  plan.tokens = {1, 2, 1, 2, 2, 3, 1, 4};
  (*worker)->start(plan);
  worker->reset();
  ASSERT_EQ(results.size(), 2U);
  EXPECT_FALSE(results[0].failure);
  std::vector<std::uint64_t> failed;
  for (const RequestFailure& failure : results[0].failed) {
    failed.push_back(failure.request.value);
    EXPECT_NE(failure.why.find("NaN"), std::string::npos);
  }
  EXPECT_EQ(failed, (std::vector<std::uint64_t>{12, 13, 14}));
  EXPECT_TRUE(results[1].failed.empty());
}

TEST(CpuWorker, StopsWithoutASingleStep) {
  const SyntheticCheckpoint checkpoint(small_spec());
  auto worker =
      CpuWorker::create(small_options(small_spec()), checkpoint, {}, [](const StepResult&) {});
  ASSERT_TRUE(worker.ok());
  worker->reset();
}

TEST(CpuWorker, MemoryIsWhatTheCostModelSays) {
  const ModelSpec spec = small_spec();
  const SyntheticCheckpoint checkpoint(spec);
  const WorkerOptions options = small_options(spec);
  auto worker = CpuWorker::create(options, checkpoint, {}, [](const StepResult&) {});
  ASSERT_TRUE(worker.ok());
  const WorkerMemory memory = (*worker)->memory();
  const std::int64_t predicted = component_bytes(spec, Component::kEmbeddings, Precision::kBf16) +
                                 spec.layers * layer_bytes(spec, Precision::kBf16);
  constexpr std::int64_t kPage = 4096;
  EXPECT_GE(memory.weight_bytes, predicted);
  EXPECT_LE(memory.weight_bytes, predicted + (spec.layers + 1) * kPage);
  EXPECT_GE(memory.kv_bytes, 64 * kv_block_bytes(spec, options.form.kv));
  const std::int64_t activations =
      activation_bytes(spec, options.max_step_tokens, std::min(64, options.max_step_tokens));
  EXPECT_GE(memory.scratch_bytes, activations);
  EXPECT_LE(memory.scratch_bytes, activations + 10 * kPage);
}

TEST(CpuWorker, RefusesFormsItDoesNotSupport) {
  const ModelSpec spec = small_spec();
  const SyntheticCheckpoint checkpoint(spec);
  const auto refused = [&](const std::function<void(WorkerOptions&)>& spoil) {
    WorkerOptions options = small_options(spec);
    spoil(options);
    const auto worker = CpuWorker::create(options, checkpoint, {}, [](const StepResult&) {});
    return worker.ok() ? std::string() : worker.error().message;
  };
  EXPECT_EQ(refused([](WorkerOptions&) {}), "");
  EXPECT_NE(refused([](WorkerOptions& o) {
              const std::vector<DeviceId> two = {DeviceId{0}, DeviceId{1}};
              o.form = divide(o.form, {.tensor = 1, .stage_layers = {1, 1}}, two);
            }).find("2 devices"),
            std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.form.shards = 2; }).find("copies of"),
            std::string::npos);
  EXPECT_EQ(refused([](WorkerOptions& o) {
              o.form.layer_precision[1] = {Precision::kW4, Precision::kW4};
            }),
            "")
      << "layers may differ";
  EXPECT_NE(refused([](WorkerOptions& o) { o.form.group.clear(); }), "");
  EXPECT_NE(refused([](WorkerOptions& o) { o.form.layer_precision.pop_back(); }), "");
  EXPECT_NE(refused([](WorkerOptions& o) { o.form.kv.blocks = 0; }), "");
  EXPECT_NE(refused([](WorkerOptions& o) { o.devices[0].threads = 0; }), "");
  EXPECT_NE(refused([](WorkerOptions& o) { o.max_positions = 0; }), "");
}

// Returns the logits after 23 tokens, which are computed in chunks that end at `ends`.
std::vector<float> logits_after(KvPrecision precision, const std::vector<int>& ends) {
  const ModelSpec spec = small_spec();
  WorkerOptions options = small_options(spec);
  options.form.kv.precision = precision;
  const SyntheticCheckpoint checkpoint(spec);
  auto rank = Rank::create(options, checkpoint);
  check(rank.ok(), "a rank with KV at this precision");
  std::vector<float> last;
  int first = 0;
  for (const int end : ends) {
    std::vector<TokenId> tokens;
    for (int i = first; i < end; ++i) {
      tokens.push_back(i * 37 % spec.vocab);
    }
    run_alone(**rank, plan_of(static_cast<std::uint64_t>(end), first, tokens),
              [&](int, std::span<const float> logits) {
                last = {logits.begin(), logits.end()};
              });
    first = end;
  }
  return last;
}

TEST(Rank, KvPrecisionIsItsOwnAndChunksDoNotMatter) {
  std::vector<int> singles(23);
  std::iota(singles.begin(), singles.end(), 1);
  const std::vector<float> exact = logits_after(KvPrecision::kF32, {23});
  float spread = 0;
  for (const float logit : exact) {
    spread = std::max(spread, std::abs(logit));
  }
  for (const KvPrecision precision : {KvPrecision::kBf16, KvPrecision::kInt8}) {
    const std::vector<float> whole = logits_after(precision, {23});
    EXPECT_EQ(logits_after(precision, {6, 7, 20, 23}), whole);
    EXPECT_EQ(logits_after(precision, singles), whole);
    EXPECT_NE(whole, exact);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(whole[i], exact[i], 0.03F * spread);
    }
  }
}

// There are more samples than are projected at once.
TEST(Rank, ManySamplesInOneStepEqualOneAtATime) {
  const ModelSpec spec = small_spec();
  const SyntheticCheckpoint checkpoint(spec);
  WorkerOptions options = small_options(spec);
  options.form.kv.blocks = 200;
  auto rank = Rank::create(options, checkpoint);
  ASSERT_TRUE(rank.ok());
  constexpr int kSequences = 150;
  StepPlan together{.id = StepId{1}};
  std::vector<TokenId> alone;
  for (int i = 0; i < kSequences; ++i) {
    StepPlan single{.id = StepId{1}, .tokens = {i % 70}, .blocks = {i}};
    single.slices.push_back({.token_count = 1, .block_count = 1, .sample = 0});
    single.samples.push_back({{.temperature = 2.0F, .seed = 7}, i});
    alone.push_back(run_alone(**rank, single).sampled.at(0));
    together.tokens.push_back(i % 70);
    together.blocks.push_back(i);
    // The samples are in another order than their slices.
    together.slices.push_back({.token_begin = i,
                               .token_count = 1,
                               .block_begin = i,
                               .block_count = 1,
                               .sample = kSequences - 1 - i});
    together.samples.insert(together.samples.begin(), single.samples[0]);
  }
  std::vector<TokenId> sampled = run_alone(**rank, together).sampled;
  std::reverse(sampled.begin(), sampled.end());
  EXPECT_EQ(sampled, alone);
}

// There are more scores than are projected at once, and another sequence that draws.
TEST(Rank, ManyScoresInOneStepEqualOneAtATime) {
  const SyntheticCheckpoint checkpoint(small_spec());
  auto rank = Rank::create(small_options(small_spec()), checkpoint);
  ASSERT_TRUE(rank.ok());
  std::vector<TokenId> tokens;
  for (int i = 0; i < 100; ++i) {
    tokens.push_back(i * 37 % 70);
  }
  std::vector<TokenLogprobs> alone;
  for (int i = 0; i < 99; ++i) {
    StepPlan plan = plan_of(1, i, {tokens[static_cast<std::size_t>(i)]});
    plan.slices[0].sample = -1;
    plan.samples.clear();
    plan.scores.push_back({.token = tokens[static_cast<std::size_t>(i) + 1], .top_logprobs = 4});
    plan.slices[0].score_count = 1;
    alone.push_back(run_alone(**rank, plan).scored.at(0));
  }
  StepPlan plan = plan_of(2, 0, {5, 6, 7});
  plan.blocks = {40};
  plan.tokens.insert(plan.tokens.end(), tokens.begin(), tokens.end());
  plan.slices.push_back({.token_begin = 3,
                         .token_count = 100,
                         .block_begin = 1,
                         .block_count = 25,
                         .score_count = 99});
  for (int i = 0; i < 99; ++i) {
    plan.blocks.push_back(i);
    plan.scores.push_back(
        {.after = 3 + i, .token = tokens[static_cast<std::size_t>(i) + 1], .top_logprobs = 4});
  }
  plan.blocks.resize(26);
  plan.samples[0].top_logprobs = 2;
  const StepResult result = run_alone(**rank, plan);
  ASSERT_EQ(result.scored.size(), alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(result.scored[i].logprob, alone[i].logprob) << i;
    EXPECT_EQ(result.scored[i].rank, alone[i].rank) << i;
    EXPECT_EQ(result.scored[i].top.at(3).logprob, alone[i].top.at(3).logprob) << i;
  }
  ASSERT_EQ(result.logprobs.size(), 1U);
  EXPECT_EQ(result.logprobs[0].rank, 1);
  EXPECT_EQ(result.logprobs[0].top.at(0).token, result.sampled.at(0));
}

// Rows with penalties, constraints and bans draw in a batch with plain rows what they draw alone.
TEST(Rank, LogprobsComeUpToTheLastSampleThatWantsThem) {
  const SyntheticCheckpoint checkpoint(small_spec());
  auto rank = Rank::create(small_options(small_spec()), checkpoint);
  ASSERT_TRUE(rank.ok());
  StepPlan plan{.id = StepId{1}};
  for (int i = 0; i < 4; ++i) {
    plan.tokens.push_back(i);
    plan.blocks.push_back(i);
    plan.slices.push_back(
        {.token_begin = i, .token_count = 1, .block_begin = i, .block_count = 1, .sample = i});
    plan.samples.push_back({.params = {.temperature = 0.0F}, .position = 1});
  }
  EXPECT_TRUE(run_alone(**rank, plan).logprobs.empty());
  plan.samples[2].top_logprobs = 0;
  const StepResult result = run_alone(**rank, plan);
  ASSERT_EQ(result.logprobs.size(), 3U);
  EXPECT_EQ(result.logprobs[2].rank, 1);
  EXPECT_EQ(result.logprobs[0].rank, 0);  // was not asked for
}

TEST(RankDeathTest, MalformedPlansStopTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const SyntheticCheckpoint checkpoint(small_spec());
  const auto run_spoiled = [&](const std::function<void(StepPlan&)>& spoil) {
    auto rank = Rank::create(small_options(small_spec()), checkpoint);
    StepPlan plan = plan_of(1, 0, {1, 2, 3});
    spoil(plan);
    run_alone(**rank, plan);
  };
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.tokens[1] = 70; }), "vocabulary");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.tokens[1] = -1; }), "vocabulary");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.blocks[0] = 64; }), "blocks exist");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.slices[0].token_count = 2; }), "every token");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.slices[0].token_count = 4; }), "cover");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.slices[0].first_position = 2; }), "hold all");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.slices[0].first_position = 126; }), "limit");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.slices[0].block_count = 9; }), "block table");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.slices[0].sample = 1; }), "sample exists");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.slices[0].sample = -1; }), "belongs");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p = {}; }), "at least one token");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.slices[0].score_count = 1; }), "inside its plan");
  const auto score = [](StepPlan& p, ScoreSpec spec) {
    p.scores = {spec};
    p.slices[0].score_count = 1;
  };
  EXPECT_DEATH(run_spoiled([&](StepPlan& p) { score(p, {.after = 3}); }), "after one");
  EXPECT_DEATH(run_spoiled([&](StepPlan& p) { score(p, {.token = 70}); }), "scored tokens");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) { p.scores.resize(1); }), "score belongs");
  EXPECT_DEATH(run_spoiled([](StepPlan& p) {
                 p.samples[0].banned = {1};
                 p.samples[0].history_count = 1;
               }),
               "history");
}

}  // namespace
}  // namespace protean
