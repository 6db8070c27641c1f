// A worker's form changes while it runs steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "worker/morph_scene_for_test.h"

namespace protean {
namespace {

SwapComponent swap_of(int layer, Component half, Precision to) {
  return {.layer = layer, .component = half, .to = to};
}

// The blocks of an answer, at random places of a KV cache that grows and shrinks.
class RestlessBlocks {
 public:
  RestlessBlocks(MorphScene& scene, GrowingAnswer& answer) : scene_(scene), answer_(answer) {}

  void give() {
    while (answer_.needs_block()) {
      const std::vector<BlockId> free = free_below(scene_.form().kv.blocks);
      ASSERT_FALSE(free.empty());
      answer_.table.push_back(free[random_() % free.size()]);
    }
  }

  // Resizes to a random size that holds the answer and a few blocks more.
  void resize() {
    const auto least = std::ssize(answer_.table) + 4;
    const std::int64_t blocks = least + static_cast<std::int64_t>(random_() % 60);
    std::vector<BlockMove> moves;
    for (BlockId& block : answer_.table) {
      if (block >= blocks) {
        const BlockId to = free_below(blocks).front();
        moves.push_back({.from = block, .to = to});
        block = to;
      }
    }
    moved_ += static_cast<int>(moves.size());
    scene_.worker().move_blocks(std::move(moves));
    scene_.apply(ResizeKv{blocks});
  }

  int moved() const { return moved_; }

 private:
  std::vector<BlockId> free_below(std::int64_t end) const {
    const std::set<BlockId> used(answer_.table.begin(), answer_.table.end());
    std::vector<BlockId> free;
    for (BlockId block = 0; block < end; ++block) {
      if (!used.contains(block)) {
        free.push_back(block);
      }
    }
    return free;
  }

  MorphScene& scene_;
  GrowingAnswer& answer_;
  std::mt19937 random_{7};
  int moved_ = 0;
};

TEST(Morph, AnswersAreTheSameBitsWhileTheKvCacheGrowsMovesAndShrinks) {
  constexpr int kSteps = 120;
  MorphScene quiet;
  const GrowingAnswer expected = answer(quiet, kSteps);

  MorphScene scene;
  GrowingAnswer restless({3, 1, 4, 1, 5, 9, 2, 6});
  RestlessBlocks blocks(scene, restless);
  for (int i = 0; i < kSteps; ++i) {
    if (i % 3 == 1) {
      blocks.resize();
    }
    blocks.give();
    restless.step(scene);
  }
  EXPECT_TRUE(restless.same_as(expected));
  EXPECT_GT(blocks.moved(), 10) << "else the test proves little";
}

void go_down_and_up(MorphScene& scene) {
  const GrowingAnswer before = answer(scene, 20);
  for (const Precision low :
       {Precision::kW8, Precision::kW8A8, Precision::kW4, Precision::kW4A8, Precision::kW3}) {
    for (int layer = 0; layer < MorphScene::spec().layers; ++layer) {
      for (const Component half : kLayerHalves) {
        scene.apply(swap_of(layer, half, low));
        EXPECT_FALSE(answer(scene, 20).same_as(before)) << to_string(scene.form());
        scene.apply(swap_of(layer, half, Precision::kBf16));
        EXPECT_TRUE(answer(scene, 20).same_as(before)) << layer << to_string(half);
      }
    }
  }
}

TEST(Morph, EveryHalfDownAndUpAgainGivesTheSameBits) {
  MorphScene scene;
  go_down_and_up(scene);
}

TEST(Morph, AHalfInShardsGoesDownAndUpWhole) {
  MorphScene scene(40, 64, {}, 2);
  go_down_and_up(scene);
}

TEST(Morph, EmbeddingsGoDownAndUpAndTheirPagesWithThem) {
  MorphScene scene;
  const GrowingAnswer before = answer(scene, 20);
  const std::int64_t pages = scene.free_pages();
  for (const Precision low : {Precision::kW8, Precision::kW8A8, Precision::kW8A7}) {
    scene.apply(swap_of(0, Component::kEmbeddings, low));
    EXPECT_GT(scene.free_pages(), pages);
    EXPECT_FALSE(answer(scene, 20).same_as(before)) << to_string(scene.form());
    scene.apply(swap_of(0, Component::kEmbeddings, Precision::kBf16));
    EXPECT_TRUE(answer(scene, 20).same_as(before));
  }
}

TEST(Morph, AFormReachedIsTheFormStartedIn) {
  MorphScene scene;
  Form low = scene.form();
  low.embeddings = Precision::kW8;
  scene.apply(swap_of(0, Component::kEmbeddings, low.embeddings));
  low.layer_precision[0] = {Precision::kW4, Precision::kBf16};
  low.layer_precision[2] = {Precision::kW8, Precision::kW3};
  for (int layer = 0; layer < MorphScene::spec().layers; ++layer) {
    for (const Component half : kLayerHalves) {
      scene.apply(
          swap_of(layer, half, low.layer_precision[static_cast<std::size_t>(layer)].of(half)));
    }
  }
  const GrowingAnswer reached = answer(scene, 20);
  WorkerEar ear;
  auto fixed = CpuWorker::create(
      {.form = low, .devices = {{}}, .max_step_tokens = 100, .max_positions = 256},
      scene.checkpoint(), {}, [&](StepResult result) { ear.hear(std::move(result)); });
  ASSERT_TRUE(fixed.ok()) << fixed.error().message;
  StepPlan plan{.id = StepId{1}, .tokens = {3, 1, 4, 1, 5, 9, 2, 6}, .blocks = {0, 1}};
  plan.slices.push_back({.token_count = 8, .block_count = 2, .sample = 0});
  plan.samples.push_back({.params = {.temperature = 0.0F}, .position = 8, .top_logprobs = 0});
  (*fixed)->start(plan);
  const StepResult result = ear.next_step();
  EXPECT_EQ(result.sampled.at(0), reached.tokens.at(0));
  EXPECT_EQ(result.logprobs.at(0).logprob, reached.logprobs.at(0));
}

// A step started before the commit is computed in the old form; one started after it, in the new
// one.
TEST(Morph, ACommitHappensBetweenTheStepsAroundIt) {
  MorphScene scene;
  const float bf16 = answer(scene, 1).logprobs.at(0);
  const SwapComponent down = swap_of(1, Component::kMlp, Precision::kW3);
  scene.apply(down);
  const float w3 = answer(scene, 1).logprobs.at(0);
  ASSERT_NE(bf16, w3);
  const SwapComponent up = swap_of(1, Component::kMlp, Precision::kBf16);
  const std::uint64_t id = scene.prepare(up);
  ASSERT_FALSE(scene.ear.ready(id).failure);
  StepPlan plan{.id = StepId{1}, .tokens = {3, 1, 4, 1, 5, 9, 2, 6}, .blocks = {0, 1}};
  plan.slices.push_back({.token_count = 8, .block_count = 2, .sample = 0});
  plan.samples.push_back({.params = {.temperature = 0.0F}, .position = 8, .top_logprobs = 0});
  scene.worker().start(plan);
  scene.worker().start(plan);
  scene.worker().commit(MorphId{id});
  scene.worker().start(plan);
  for (const float expected : {w3, w3, bf16}) {
    EXPECT_EQ(scene.ear.next_step().logprobs.at(0).logprob, expected);
  }
  scene.ear.done(id);
}

// A read that lasts until it is released and calls `pace` after each of its pieces.
class StuckRead {
 public:
  ReadComponent over(const SyntheticCheckpoint& checkpoint) {
    return [this, &checkpoint](const ComponentVariant& which, std::span<std::byte> memory,
                               const Pace& pace) {
      Result<std::string> read = MorphScene::read_from(checkpoint, which, memory, pace);
      while (read && stuck_) {
        stuck_now_ = true;
        if (!pace(1)) {
          return Result<std::string>(make_error(ErrorCode::kUnavailable, "called off"));
        }
        std::this_thread::yield();
      }
      return read;
    };
  }
  void set(bool stuck) { stuck_ = stuck; }
  void wait_until_stuck() const {
    while (!stuck_now_) {
      std::this_thread::yield();
    }
  }

 private:
  std::atomic<bool> stuck_{false};
  std::atomic<bool> stuck_now_{false};
};

TEST(Morph, ASlowReadHoldsUpNeitherStepsNorTheKvCache) {
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  StuckRead slow;
  MorphScene scene(40, 64, slow.over(checkpoint));
  const GrowingAnswer before = answer(scene, 30);
  slow.set(true);
  const SwapComponent down = swap_of(0, Component::kMlp, Precision::kW4);
  const std::uint64_t id = scene.prepare(down);
  slow.wait_until_stuck();
  EXPECT_TRUE(answer(scene, 30).same_as(before));
  const ResizeKv more{60};
  const std::uint64_t grown = scene.prepare(more);
  EXPECT_FALSE(scene.ear.ready(grown).failure);
  scene.commit(grown, more);
  EXPECT_FALSE(scene.ear.heard_of(id));
  slow.set(false);
  EXPECT_FALSE(scene.ear.ready(id).failure);
  scene.commit(id, down);
  EXPECT_FALSE(answer(scene, 30).same_as(before));
}

TEST(Morph, WorkInTheBackgroundYieldsToSwapsAndEndsWithTheWorker) {
  std::atomic<int> begun = 0;
  const auto endless = [&](const Pace& pace) {
    ++begun;
    while (pace(1)) {
    }
    return true;
  };
  MorphScene scene(40, 64);
  scene.worker().in_background(endless);
  for (const Component half : kLayerHalves) {
    scene.apply(swap_of(1, half, Precision::kW4));
  }
  scene.stop();
  EXPECT_GE(begun, 2) << "the rest is done after the swap";
}

TEST(Morph, StopsInTheMiddleOfACopy) {
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  StuckRead slow;
  MorphScene scene(40, 64, slow.over(checkpoint));
  slow.set(true);
  scene.prepare(swap_of(0, Component::kMlp, Precision::kW4));
  scene.prepare(swap_of(1, Component::kMlp, Precision::kW4));
  scene.prepare(ResizeKv{50});
  slow.wait_until_stuck();
  scene.stop();
}

TEST(Morph, DamageIsReportedAndChangesNothing) {
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  std::atomic<bool> damaged{false};
  MorphScene scene(40, 64,
                   [&](const ComponentVariant& which, std::span<std::byte> memory,
                       const Pace& pace) -> Result<std::string> {
                     if (damaged && which.layer == 1) {
                       std::fill(memory.begin(), memory.end(),
                                 std::byte{0x77});  // the piece that was read
                       return make_error(ErrorCode::kCorrupt, "the variant's checksum is wrong");
                     }
                     return MorphScene::read_from(checkpoint, which, memory, pace);
                   });
  const GrowingAnswer before = answer(scene, 20);
  damaged = true;
  const MorphReady ready =
      scene.ear.ready(scene.prepare(swap_of(1, Component::kAttention, Precision::kW8)));
  ASSERT_TRUE(ready.failure);
  EXPECT_EQ(ready.failure->code, ErrorCode::kCorrupt);
  EXPECT_EQ(ready.failure->message, "layer 1 attention to w8: the variant's checksum is wrong");
  EXPECT_TRUE(answer(scene, 20).same_as(before));
  EXPECT_EQ(scene.counted_free_pages(), scene.free_pages());
  scene.apply(swap_of(0, Component::kAttention, Precision::kW8));
  EXPECT_FALSE(answer(scene, 20).same_as(before));
}

TEST(Morph, TheReadersRemarkIsPassedOn) {
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  MorphScene scene(
      40, 64, [&](const ComponentVariant& which, std::span<std::byte> memory, const Pace& pace) {
        Result<std::string> read = MorphScene::read_from(checkpoint, which, memory, pace);
        if (read && which.precision == Precision::kW8) {
          *read = "packed anew";
        }
        return read;
      });
  for (const auto& [to, remark] :
       {std::pair{Precision::kW8, "packed anew"}, {Precision::kW4, ""}}) {
    const SwapComponent swap = swap_of(1, Component::kMlp, to);
    const std::uint64_t id = scene.prepare(swap);
    EXPECT_EQ(scene.ear.ready(id).remark, remark);
    scene.commit(id, swap);
  }
}

// A worker that cannot read a component while it loads is not created.
TEST(Morph, DamageWhileLoadingIsAnErrorThatNamesTheHalf) {
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  const Form form = single_device_form(checkpoint.spec(), Precision::kBf16, DeviceId{0},
                                       {.block_tokens = 4, .blocks = 8});
  const WorkerOptions options{
      .form = form,
      .pages = PageBudget{4096, form_pages(checkpoint.spec(), form, 4096)},
      .read_component = [&](const ComponentVariant& which, std::span<std::byte> memory,
                            const Pace& pace) -> Result<std::string> {
        if (which.layer == 2 && which.component == Component::kMlp) {
          return make_error(ErrorCode::kCorrupt, "neither file nor checkpoint has it");
        }
        return MorphScene::read_from(checkpoint, which, memory, pace);
      }};
  const auto worker = CpuWorker::create(options, checkpoint, {}, [](const StepResult&) {});
  ASSERT_FALSE(worker.ok());
  EXPECT_EQ(worker.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(worker.error().message, "layer 2 mlp: neither file nor checkpoint has it");
}

TEST(Morph, ShortPagesAreReportedAndChangeNothing) {
  MorphScene scene(40, 2);
  const GrowingAnswer before = answer(scene, 20);
  for (const MorphStep& step :
       {MorphStep(swap_of(1, Component::kMlp, Precision::kBf16)), MorphStep(ResizeKv{400}),
        MorphStep(ResizeKv{std::int64_t{1} << 40}), MorphStep(ResizeKv{0}),
        MorphStep(swap_of(3, Component::kMlp, Precision::kW4))}) {
    const MorphReady ready = scene.ear.ready(scene.prepare(step));
    EXPECT_TRUE(ready.failure) << to_string(step);
  }
  EXPECT_EQ(scene.counted_free_pages(), 2);
  EXPECT_TRUE(answer(scene, 20).same_as(before));
}

TEST(Morph, AbortGivesPagesBackAtAnyTime) {
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  StuckRead slow;
  MorphScene scene(40, 64, slow.over(checkpoint));
  const GrowingAnswer before = answer(scene, 20);
  slow.set(true);
  const std::uint64_t copying = scene.prepare(swap_of(0, Component::kMlp, Precision::kW4));
  const std::uint64_t queued = scene.prepare(swap_of(1, Component::kMlp, Precision::kW4));
  slow.wait_until_stuck();
  scene.worker().abort(MorphId{queued});
  scene.worker().abort(MorphId{copying});
  slow.set(false);
  const std::uint64_t swapped = scene.prepare(swap_of(2, Component::kMlp, Precision::kW4));
  EXPECT_FALSE(scene.ear.ready(swapped).failure);
  scene.worker().abort(MorphId{swapped});
  const std::uint64_t grown = scene.prepare(ResizeKv{60});
  EXPECT_FALSE(scene.ear.ready(grown).failure);
  const std::uint64_t behind = scene.prepare(ResizeKv{70});
  scene.worker().abort(MorphId{behind});
  scene.worker().abort(MorphId{grown});
  const std::uint64_t shrunk = scene.prepare(ResizeKv{20});
  EXPECT_FALSE(scene.ear.ready(shrunk).failure);
  scene.worker().abort(MorphId{shrunk});
  scene.worker().abort(MorphId{shrunk});  // an abort after the commit is ignored
  scene.apply(swap_of(2, Component::kAttention, Precision::kBf16));  // counts the free pages
  EXPECT_FALSE(scene.ear.heard_of(queued));
  EXPECT_FALSE(scene.ear.heard_of(copying));
  EXPECT_FALSE(scene.ear.heard_of(behind));
  EXPECT_TRUE(answer(scene, 20).same_as(before));
}

TEST(Morph, WithoutPagesEverythingIsRefused) {
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  const Form form = single_device_form(checkpoint.spec(), Precision::kBf16, DeviceId{0},
                                       {.block_tokens = 4, .blocks = 8});
  WorkerEar ear;
  auto worker = CpuWorker::create(
      {.form = form}, checkpoint, {}, [](const StepResult&) {},
      {.ready = [&](MorphReady ready) { ear.hear(std::move(ready)); }, .done = {}});
  ASSERT_TRUE(worker.ok());
  (*worker)->prepare(MorphId{1}, ResizeKv{9});
  const MorphReady ready = ear.ready(1);
  ASSERT_TRUE(ready.failure);
  EXPECT_EQ(ready.failure->code, ErrorCode::kUnsupported);
  (*worker)->abort(MorphId{1});
}

TEST(Morph, AFormThatDoesNotFitItsPagesIsRefused) {
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  const Form form = single_device_form(checkpoint.spec(), Precision::kBf16, DeviceId{0},
                                       {.block_tokens = 4, .blocks = 8});
  const std::int64_t needed = form_pages(checkpoint.spec(), form, 4096);
  WorkerOptions options{.form = form, .pages = PageBudget{4096, needed - 1}};
  const auto ignore = [](const StepResult&) {};
  const auto refused = CpuWorker::create(options, checkpoint, {}, ignore);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  options.pages->pages = needed;
  EXPECT_TRUE(CpuWorker::create(options, checkpoint, {}, ignore).ok()) << "without any reserve";
}

// Random morph steps, several at a time, some of them aborted, while an answer grows. Its precision
// changes, so the test checks only that the answer continues and that pages are conserved.
TEST(Morph, PagesAreConservedInAStorm) {
  constexpr int kRounds = 150;
  MorphScene scene(40, 12);
  std::mt19937 random(11);
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  const Precision ladder[] = {Precision::kBf16, Precision::kW8,   Precision::kW8A8,
                              Precision::kW4,   Precision::kW4A8, Precision::kW3};
  int failed = 0;
  int committed = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::pair<std::uint64_t, MorphStep>> under_way;
    for (int i = below(4); i >= 0; --i) {
      MorphStep step = ResizeKv{below(8) == 0 ? 100'000 : 20 + below(60)};
      if (i > 0) {
        step = swap_of(below(3), kLayerHalves[random() % 2], ladder[random() % std::size(ladder)]);
      }
      under_way.emplace_back(scene.prepare(step), step);
    }
    answer(scene, 2);
    for (const auto& [id, step] : under_way) {
      if (below(5) == 0) {
        scene.worker().abort(MorphId{id});
      } else if (scene.ear.ready(id).failure) {
        ++failed;
      } else {
        scene.commit(id, step);
        ++committed;
      }
    }
    ASSERT_EQ(scene.counted_free_pages(), scene.free_pages()) << "round " << round;
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(committed, kRounds);
}

}  // namespace
}  // namespace protean
