// Groups of devices: whatever divides a model among them, steps have the bits of one device, and
// morphs of precision and KV size go on as on one.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/repetitions_for_test.h"
#include "cost/pages.h"
#include "model/synthetic_checkpoint.h"
#include "worker/cpu_worker.h"
#include "worker/morph_scene_for_test.h"

namespace protean {
namespace {

constexpr int kBlockTokens = 4;
constexpr std::int64_t kGroupPageBytes = 4096;
constexpr int kLayers = 5;

ModelSpec group_spec(bool everything, bool tied) {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = kLayers;
  spec.hidden = 64;
  spec.ffn = 104;  // 26 neurons for each of 4 shards, so every shard has padding
  spec.vocab = 171;
  spec.max_context = 256;
  spec.tied_embeddings = tied;
  spec.attention = {.heads = 8, .kv_heads = 4, .head_dim = 16};
  spec.attention.qk_norm = true;
  if (everything) {
    spec.attention.qkv_bias = spec.attention.output_bias = true;
    spec.attention.sliding_window = 20;
  } else {
    spec.attention.qk_norm_over_heads = true;
  }
  return spec;
}

struct GroupCase {
  std::string name;
  Division division;
  int threads = 1;
  std::int64_t lacking_pages = 0;  // of the first device
};

// How weights and KV are stored.
struct Stored {
  Precision weights;
  KvPrecision kv = KvPrecision::kBf16;
};

Form form_of(const ModelSpec& spec, const GroupCase& group, int shards, Stored stored) {
  Form form =
      single_device_form(spec, stored.weights, DeviceId{0},
                         {.precision = stored.kv, .block_tokens = kBlockTokens, .blocks = 80});
  form.shards = shards;
  std::vector<DeviceId> devices;
  for (int device = 0; device < group.division.devices(); ++device) {
    devices.push_back(DeviceId{device});
  }
  form = divide(std::move(form), group.division, devices);
  form.group.front().lacking_pages = group.lacking_pages;
  return form;
}

// A worker on a group, its form, and what it answers.
class GroupScene {
 public:
  GroupScene(const ModelSpec& spec, const GroupCase& group, int shards, Stored stored)
      : checkpoint_(spec), form_(form_of(spec, group, shards, stored)) {
    const std::int64_t pages = form_pages(spec, form_, kGroupPageBytes) + 60;
    const WorkerOptions options{
        .form = form_,
        .devices = std::vector<WorkerDevice>(form_.group.size(), {.threads = group.threads}),
        .max_step_tokens = 100,
        .max_positions = 256,
        .max_in_flight = 3,
        .pages = PageBudget{kGroupPageBytes, pages},
        .read_component = [this](const ComponentVariant& which, std::span<std::byte> memory,
                                 const Pace& pace) -> Result<std::string> {
          if (which.shard == refused_shard_) {
            return make_error(ErrorCode::kCorrupt, "a damaged file");
          }
          return MorphScene::read_from(checkpoint_, which, memory, pace);
        }};
    std::map<std::int64_t, std::int64_t> loaded_by_total;  // bytes, as each device ends
    auto worker = CpuWorker::create(
        options, checkpoint_,
        [&](std::int64_t done_bytes, std::int64_t total_bytes) {
          loaded_by_total[total_bytes] = done_bytes;
        },
        [this](StepResult result) { ear.hear(std::move(result)); },
        {.ready = [this](MorphReady ready) { ear.hear(std::move(ready)); },
         .done = [this](MorphDone done) { ear.hear(done); }});
    for (const auto& [total_bytes, done_bytes] : loaded_by_total) {
      EXPECT_EQ(done_bytes, total_bytes) << "the weights of a device are loaded";
    }
    EXPECT_TRUE(worker.ok()) << worker.error().message;
    worker_ = std::move(*worker);
    pages_ = pages;
  }

  CpuWorker& worker() { return *worker_; }
  const Form& form() const { return form_; }
  void refuse_shard(int shard) { refused_shard_ = shard; }

  MorphReady prepare(const MorphStep& step) {
    worker_->prepare(MorphId{++last_id_}, step);
    return ear.ready(last_id_);
  }
  void commit(const MorphStep& step) {
    worker_->commit(MorphId{last_id_});
    form_ = after(form_, step);
    EXPECT_EQ(ear.done(last_id_).pages_free,
              pages_ - form_pages(checkpoint_.spec(), form_, kGroupPageBytes));
  }
  void apply(const MorphStep& step) {
    const MorphReady ready = prepare(step);
    ASSERT_FALSE(ready.failure) << ready.failure->message;
    commit(step);
  }

  WorkerEar ear;

 private:
  SyntheticCheckpoint checkpoint_;
  Form form_;
  std::int64_t pages_ = 0;
  std::uint64_t last_id_ = 0;
  std::atomic<int> refused_shard_ = -1;
  std::unique_ptr<CpuWorker> worker_;
};

// Three sequences in blocks of their own, which start in different steps and decode together. Steps
// are started ahead as far as a sequence's next token is known.
class Traffic {
 public:
  struct Sequence {
    std::vector<TokenId> tokens;
    int computed = 0;
    int first_block = 0;
  };

  explicit Traffic(int vocab) {
    std::mt19937 random(7);
    for (int i = 0; i < 3; ++i) {
      Sequence& sequence = sequences_.emplace_back();
      sequence.first_block = 20 * i;
      for (int token = 0; token < 13 + 24 * i; ++token) {
        sequence.tokens.push_back(
            static_cast<TokenId>(random() % static_cast<std::uint32_t>(vocab)));
      }
    }
  }

  // Runs `steps` steps; calls `between` before each. All chosen tokens and their log-probabilities,
  // and those of scored prompt tokens, are in `seen`.
  void run(GroupScene& scene, int steps, const std::function<void(int)>& between = {}) {
    for (int i = 0; i < steps; ++i) {
      if (between) {
        between(i);
      }
      std::vector<std::size_t> drawing;
      scene.worker().start(plan(drawing));
      take(scene.ear.next_step(), drawing);
    }
  }

  std::vector<float> seen;

 private:
  StepPlan plan(std::vector<std::size_t>& drawing) {
    StepPlan plan{.id = StepId{++last_step_}};
    for (std::size_t i = 0; i < sequences_.size() && i < last_step_; ++i) {
      Sequence& sequence = sequences_[i];
      const int pending = static_cast<int>(sequence.tokens.size()) - sequence.computed;
      const int count = std::min(pending, 30);
      const int end = sequence.computed + count;
      SequenceSlice slice{.request = RequestId{i + 1},
                          .first_position = sequence.computed,
                          .token_begin = static_cast<int>(plan.tokens.size()),
                          .token_count = count,
                          .block_begin = static_cast<int>(plan.blocks.size()),
                          .block_count = (end + kBlockTokens - 1) / kBlockTokens};
      plan.tokens.insert(plan.tokens.end(), sequence.tokens.begin() + sequence.computed,
                         sequence.tokens.begin() + end);
      for (int block = 0; block < slice.block_count; ++block) {
        plan.blocks.push_back(sequence.first_block + block);
      }
      if (count == pending) {
        slice.sample = static_cast<int>(plan.samples.size());
        plan.samples.push_back({.params = {.temperature = i == 1 ? 0.8F : 0.0F, .seed = 9},
                                .position = end,
                                .top_logprobs = 2});
        drawing.push_back(i);
      } else {  // scores the second token of an inner chunk
        slice.score_begin = static_cast<int>(plan.scores.size());
        slice.score_count = 1;
        plan.scores.push_back({.after = slice.token_begin, .token = sequence.tokens[1]});
      }
      sequence.computed = end;
      plan.slices.push_back(slice);
    }
    return plan;
  }

  void take(const StepResult& result, const std::vector<std::size_t>& drawing) {
    EXPECT_FALSE(result.failure);
    EXPECT_TRUE(result.failed.empty());
    for (std::size_t i = 0; i < drawing.size(); ++i) {
      sequences_[drawing[i]].tokens.push_back(result.sampled.at(i));
      seen.push_back(static_cast<float>(result.sampled[i]));
      seen.push_back(result.logprobs.at(i).logprob);
      for (const TokenLogprob& top : result.logprobs[i].top) {
        seen.push_back(top.logprob);
      }
    }
    for (const TokenLogprobs& scored : result.scored) {
      seen.push_back(scored.logprob);
    }
  }

  std::vector<Sequence> sequences_;
  std::uint64_t last_step_ = 0;
};

const GroupCase kAlone{"alone", {1, {kLayers}}};

std::vector<GroupCase> groups() {
  return {{"alone_2_threads", {1, {kLayers}}, 2},
          {"tp2", {2, {kLayers}}},
          {"tp2_2_threads", {2, {kLayers}}, 2},
          {"tp4", {4, {kLayers}}},
          {"pp2", {1, {3, 2}}},
          {"pp3_uneven", {1, {1, 3, 1}}},
          {"pp5", {1, {1, 1, 1, 1, 1}}},
          {"tp2_pp2", {2, {2, 3}}, 2},
          {"tp4_pp2", {4, {4, 1}}}};
}

std::vector<float> answers_of(const ModelSpec& spec, const GroupCase& group, Stored stored) {
  GroupScene scene(spec, group, 4, stored);
  Traffic traffic(spec.vocab);
  traffic.run(scene, 12);
  return traffic.seen;
}

class Groups : public testing::TestWithParam<std::tuple<Precision, KvPrecision, bool>> {};

TEST_P(Groups, HaveTheBitsOfOneDevice) {
  const auto [weights, kv, everything] = GetParam();
  const ModelSpec spec = group_spec(everything, !everything);
  const std::vector<float> alone = answers_of(spec, kAlone, {weights, kv});
  ASSERT_GT(alone.size(), 100U);
  for (const GroupCase& group : groups()) {
    EXPECT_EQ(answers_of(spec, group, {weights, kv}), alone) << group.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, Groups,
                         testing::Combine(testing::Values(Precision::kBf16, Precision::kW8,
                                                          Precision::kW4, Precision::kW8A8),
                                          testing::Values(KvPrecision::kBf16, KvPrecision::kInt8),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) + "_kv_" +
                                  std::string(to_string(std::get<1>(info.param))) +
                                  (std::get<2>(info.param) ? "_all" : "_norm_over_heads");
                         });

// The steps of a morph, one before each step of the traffic.
std::vector<MorphStep> morph_steps() {
  return {SwapComponent{4, Component::kMlp, Precision::kW8},
          SwapComponent{0, Component::kAttention, Precision::kW4},
          ResizeKv{90},
          SwapComponent{0, Component::kEmbeddings, Precision::kW8},
          SwapComponent{2, Component::kMlp, Precision::kW8A8},
          ResizeKv{70},
          SwapComponent{4, Component::kMlp, Precision::kBf16},
          SwapComponent{0, Component::kEmbeddings, Precision::kBf16}};
}

TEST(Group, MorphsOfPrecisionAndKvAreThoseOfOneDevice) {
  const ModelSpec spec = group_spec(false, false);
  const auto answers = [&](const GroupCase& group) {
    GroupScene scene(spec, group, 4, {Precision::kBf16});
    Traffic traffic(spec.vocab);
    const std::vector<MorphStep> steps = morph_steps();
    traffic.run(scene, 12, [&](int i) {
      if (i >= 2 && i - 2 < static_cast<int>(steps.size())) {
        scene.apply(steps[static_cast<std::size_t>(i) - 2]);
      }
    });
    return traffic.seen;
  };
  const std::vector<float> alone = answers(kAlone);
  for (const GroupCase& group : groups()) {
    EXPECT_EQ(answers(group), alone) << group.name;
  }
}

// Moves every sequence's blocks before some steps.
TEST(Group, MovesBlocksOnAllDevices) {
  const ModelSpec spec = group_spec(true, false);
  for (const GroupCase& group : groups()) {
    GroupScene scene(spec, group, 4, {Precision::kBf16});
    Traffic traffic(spec.vocab);
    traffic.run(scene, 12, [&](int i) {
      if (i % 3 == 2) {  // away, and back from where they were
        scene.worker().move_blocks({{0, 70}, {20, 71}, {1, 72}});
        scene.worker().move_blocks({{70, 0}, {71, 20}, {72, 1}});
      }
    });
    EXPECT_EQ(traffic.seen, answers_of(spec, kAlone, {Precision::kBf16})) << group.name;
  }
}

TEST(Group, ADeviceMayHaveFewerPagesThanTheOthers) {
  const ModelSpec spec = group_spec(false, false);
  const GroupCase group{.name = "pp2", .division = {1, {kLayers - 2, 2}}, .lacking_pages = 50};
  GroupScene scene(spec, group, 4, {Precision::kBf16});
  Traffic traffic(spec.vocab);
  traffic.run(scene, 3);
  scene.apply(ResizeKv{81});  // counts the free pages of the device that has fewest
  scene.apply(SwapComponent{0, Component::kMlp, Precision::kW8});
  traffic.run(scene, 3);
}

TEST(Group, AFailureOnOneDeviceAbortsTheStepOnAll) {
  const ModelSpec spec = group_spec(false, false);
  GroupScene scene(spec, {"tp4", {4, {kLayers}}}, 4, {Precision::kBf16});
  Traffic traffic(spec.vocab);
  traffic.run(scene, 3);
  const MorphStep step = SwapComponent{1, Component::kMlp, Precision::kW8};
  scene.refuse_shard(2);
  for (int i = 0; i < 5; ++i) {
    const MorphReady ready = scene.prepare(step);
    ASSERT_TRUE(ready.failure);
    EXPECT_NE(ready.failure->message.find("a damaged file"), std::string::npos);
  }
  scene.refuse_shard(-1);
  scene.apply(step);  // counts the free pages of all devices
  EXPECT_TRUE(scene.prepare(ResizeKv{100000}).failure);
  scene.apply(ResizeKv{81});
  traffic.run(scene, 3);
}

// While the first stage computes the first step, the others have none.
TEST(Group, MeasuresHowLongDevicesIdle) {
  const ModelSpec spec = group_spec(false, false);
  for (const GroupCase& group : groups()) {
    GroupScene scene(spec, group, 4, {Precision::kBf16});
    EXPECT_EQ(scene.worker().use().span_ns, 0);
    Traffic traffic(spec.vocab);
    traffic.run(scene, 12);
    const DeviceUse use = scene.worker().use();
    EXPECT_EQ(use.busy_ns > 0, group.division.devices() > 1) << group.name;
    EXPECT_EQ(use.span_ns > 0, group.division.devices() > 1) << group.name;
    if (group.division.stage_layers.size() > 1) {
      EXPECT_GT(use.bubble_share(), 0) << group.name;
      EXPECT_LT(use.bubble_share(), 1) << group.name;
    }
  }
}

// Steps of very different sizes in blocks of their own, all started before the first one is done.
std::vector<float> answers_of_many_steps(GroupScene& scene) {
  constexpr std::uint64_t kSteps = 60;
  for (std::uint64_t id = 1; id <= kSteps; ++id) {
    const int count = id % 3 == 0 ? 70 : id % 3 == 1 ? 2 : 19;
    const int blocks = (count + kBlockTokens - 1) / kBlockTokens;
    StepPlan plan{.id = StepId{id}};
    for (int token = 0; token < count; ++token) {
      plan.tokens.push_back(
          static_cast<TokenId>((id * 31 + static_cast<unsigned>(token) * 7) % 171));
    }
    for (int block = 0; block < blocks; ++block) {
      plan.blocks.push_back(static_cast<int>(id % 3) * 25 + block);
    }
    plan.slices.push_back({.token_count = count, .block_count = blocks, .sample = 0});
    plan.samples.push_back({.params = {.temperature = 0.0F}, .position = count, .top_logprobs = 0});
    scene.worker().start(std::move(plan));
  }
  std::vector<float> seen;
  for (std::uint64_t id = 1; id <= kSteps; ++id) {
    const StepResult result = scene.ear.next_step();
    EXPECT_EQ(result.id.value, id);
    seen.push_back(static_cast<float>(result.sampled.at(0)));
    seen.push_back(result.logprobs.at(0).logprob);
  }
  return seen;
}

TEST(Group, ManyStepsInFlightStayApartAndInOrder) {
  const ModelSpec spec = group_spec(false, false);
  GroupScene alone(spec, kAlone, 4, {Precision::kBf16});
  const std::vector<float> expected = answers_of_many_steps(alone);
  for (const GroupCase& group : groups()) {
    GroupScene scene(spec, group, 4, {Precision::kBf16});
    for (int i = 0; i < repetitions(3); ++i) {
      EXPECT_EQ(answers_of_many_steps(scene), expected) << group.name;
    }
  }
}

}  // namespace
}  // namespace protean
