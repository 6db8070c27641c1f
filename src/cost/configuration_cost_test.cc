#include "cost/configuration_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cost/known_models.h"
#include "cost/memory.h"
#include "cost/pages.h"
#include "cost/pruned_spec.h"

namespace protean {
namespace {

ModelSpec known(const char* name) {
  const auto model = find_known_model(name, true);
  EXPECT_TRUE(model.ok()) << name;
  return model->spec;
}

double layers_weights(const ModelSpec& spec) {
  return static_cast<double>(matrices_bytes(spec, Component::kAttention, Precision::kF32) +
                             matrices_bytes(spec, Component::kMlp, Precision::kF32));
}

TEST(PrunedSpec, RemovesItsShareOfEveryLayer) {
  for (const char* name : {"llama-2-7b", "llama-2-70b", "llama-3.2-1b", "gpt-j-6b", "falcon-40b"}) {
    const ModelSpec spec = known(name);
    for (const int percent : {12, 25, 50}) {
      const ModelSpec pruned =
          pruned_spec(spec, {.kind = PruningKind::kStructured, .percent = percent});
      EXPECT_NEAR(layers_weights(pruned) / layers_weights(spec), 1 - percent / 100.0, 0.01)
          << name << " " << percent;
      EXPECT_TRUE(validate(pruned).ok()) << name;
      EXPECT_EQ(pruned.ffn % 32, 0);
    }
  }
}

// The bytes of one device that holds everything are those of the form that a server would start in.
TEST(ConfigurationMemory, OfOneDeviceIsThatOfItsForm) {
  const ModelSpec spec = known("llama-3.2-1b");
  const PlannedLoad load{.batch = 4, .prompt_tokens = 100, .output_tokens = 28};
  for (const Precision weights : {Precision::kBf16, Precision::kW8, Precision::kW4}) {
    const Configuration one{.weights = weights, .kv = KvPrecision::kInt8};
    const ConfigurationMemory memory = memory_of(spec, one, load);
    const KvForm kv{.precision = KvPrecision::kInt8, .block_tokens = 16, .blocks = 4 * 8};
    const Form form = single_device_form(spec, weights, DeviceId{0}, kv);
    const std::array layers = {spec.layers};
    EXPECT_EQ(memory.total_bytes(layers) - memory.buffer_bytes,
              weight_bytes(spec, form) + kv.blocks * kv_block_bytes(spec, kv));
  }
}

// Returns the bytes of the tensors that a device holds in bf16, and of KV of so many tokens.
std::int64_t bytes_of_tensors(const ModelSpec& spec, const Form& form, const Holding& holding,
                              std::int64_t kv_tokens) {
  const std::int64_t hidden = spec.hidden;
  const std::int64_t q = spec.attention.heads * std::int64_t{spec.attention.head_dim};
  const std::int64_t kv = spec.attention.kv_heads * std::int64_t{spec.attention.head_dim};
  const auto held = [&](const ShardRun& run, std::int64_t bf16_elements) {
    const std::int64_t norm_bytes = 4 * hidden;
    return run.empty() ? 0 : 2 * bf16_elements * run.count / form.shards + norm_bytes;
  };
  std::int64_t bytes = held(holding.embeddings, 2 * spec.vocab * hidden);
  for (const Holding::Layer& layer : holding.layers) {
    bytes += held(layer.attention, 2 * hidden * (q + kv) + 2 * kv_tokens * kv);
    bytes += held(layer.mlp, 3 * hidden * spec.ffn);
  }
  return bytes;
}

TEST(ConfigurationMemory, CountsKvBeyond32Bits) {
  const ModelSpec spec = known("llama-2-7b");
  const auto bytes = [&](int batch) {
    return memory_of(spec, {}, {.batch = batch, .prompt_tokens = 1 << 18, .output_tokens = 1 << 18})
        .block_bytes;
  };
  EXPECT_EQ(bytes(kMostPlannedBatch) - bytes(kMostPlannedBatch / 2),
            (bytes(2) - bytes(1)) * (kMostPlannedBatch / 2));
  EXPECT_GT(bytes(kMostPlannedBatch), bytes(1));
}

// The first and the last stage hold the embedding matrix and the LM head.
TEST(ConfigurationMemory, OfEachDeviceIsThatOfTheTensorsOfItsStageHoweverUnevenStagesAre) {
  const ModelSpec spec{.architecture = "llama",
                       .layers = 7,
                       .hidden = 256,
                       .ffn = 704,
                       .vocab = 512,
                       .max_context = 256,
                       .attention = {.heads = 8, .kv_heads = 4, .head_dim = 32}};
  const PlannedLoad load{.batch = 3, .prompt_tokens = 100, .output_tokens = 28};
  for (const int tensor : {1, 2}) {
    const Configuration one{.tensor = tensor, .stages = 3};
    const ConfigurationMemory memory = memory_of(spec, one, load);
    std::vector<DeviceId> devices;
    for (int device = 0; device < one.devices(); ++device) {
      devices.push_back(DeviceId{device});
    }
    int divisions = 0;
    for (int first = 1; first <= spec.layers - 2; ++first) {
      for (int second = 1; first + second < spec.layers; ++second) {
        const std::vector<int> layers = {first, second, spec.layers - first - second};
        Form form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {});
        form.shards = tensor;
        form = divide(std::move(form), {.tensor = tensor, .stage_layers = layers}, devices);
        std::int64_t total = 0;
        std::int64_t most = 0;
        for (const Holding& holding : form.group) {
          const std::int64_t bytes =
              bytes_of_tensors(spec, form, holding, load.batch * load.context()) +
              memory.buffer_bytes;
          total += bytes;
          most = std::max(most, bytes);
        }
        EXPECT_EQ(memory.total_bytes(layers), total) << first << ", " << second;
        EXPECT_EQ(memory.fullest_bytes(layers), most) << first << ", " << second;
        ++divisions;
      }
    }
    EXPECT_EQ(divisions, 15);
    const std::vector<int> even = even_division(spec.layers, tensor, 3).stage_layers;
    EXPECT_LT(memory.fullest_bytes(even), memory.fullest_bytes(std::array{1, 1, 5}));
  }
}

TEST(ConfigurationMemory, PipelinesAndTensorsAddOnlyWhatTheyRepeat) {
  const ModelSpec spec = known("llama-2-70b");
  const auto total = [&](int tensor, int stages) {
    const Configuration one{.tensor = tensor, .stages = stages};
    const Division even = even_division(spec.layers, tensor, stages);
    return memory_of(spec, one, {}).total_bytes(even.stage_layers);
  };
  const std::int64_t base = total(1, 1);
  EXPECT_GT(total(2, 1), base);
  EXPECT_GT(total(1, 2), base);
  EXPECT_LT(total(8, 1), base * 102 / 100);
}

TEST(ConfigurationMemory, TwoOfFourStoresNineSixteenthsOfTheMatrices) {
  const ModelSpec spec = known("llama-3.2-1b");
  const ConfigurationMemory dense = memory_of(spec, {}, {});
  const ConfigurationMemory sparse =
      memory_of(spec, {.pruning = {.kind = PruningKind::kTwoOfFour}}, {});
  const double saved = static_cast<double>(dense.block_bytes - sparse.block_bytes);
  const double matrices =
      static_cast<double>(matrices_bytes(spec, Component::kAttention, Precision::kBf16) +
                          matrices_bytes(spec, Component::kMlp, Precision::kBf16));
  EXPECT_NEAR(saved / matrices, 1 - 0.5625, 1e-6);
}

TEST(ConfigurationLatency, OfOneDeviceIsThatOfItsSteps) {
  StepCost cost;
  cost.fixed_us = 10;
  cost.of(Precision::kBf16) = {.step_us = 1000, .token_us = 1, .more_token_us = 1};
  cost.logits_at(Precision::kBf16) = {.step_us = 50, .row_us = 5};
  const ModelSpec spec = known("llama-3.2-1b");
  const PlannedLoad load{.prompt_tokens = 100, .output_tokens = 10};
  const Latency alone = latency_of(spec, {}, load, {.cost = cost});
  EXPECT_NEAR(alone.ttft_us, 10 + 1000 + 100 + 55, 1e-6);
  EXPECT_NEAR(alone.tpot_us, 10 + 1000 + 1 + 55, 1e-6);
  // Two stages add a fixed part and a message.
  const Latency staged = latency_of(spec, {.stages = 2}, load, {.cost = cost, .send = {.us = 7}});
  EXPECT_NEAR(staged.tpot_us - alone.tpot_us, 10 + 7, 1e-6);
}

// Two stages compute the halves of a batch concurrently, so a large batch is decoded in less time
// than on one device if rows cost more than reading weights.
TEST(ConfigurationLatency, StagesWorkOnPartsOfTheBatch) {
  StepCost cost;
  cost.of(Precision::kBf16) = {.step_us = 10, .token_us = 100, .more_token_us = 100};
  const ModelSpec spec = known("llama-3.2-1b");
  const PlannedLoad load{.batch = 8, .prompt_tokens = 16, .output_tokens = 16};
  const double one = latency_of(spec, {}, load, {.cost = cost}).tpot_us;
  const double two = latency_of(spec, {.stages = 2}, load, {.cost = cost}).tpot_us;
  EXPECT_LT(two, 0.6 * one);
}

// While the second stage computes the first part of a prompt, the first stage computes the second
// part.
TEST(ConfigurationLatency, StagesWorkOnPartsOfAPrompt) {
  StepCost cost;
  cost.of(Precision::kBf16) = {.token_us = 100, .more_token_us = 100};
  cost.logits_at(Precision::kBf16) = {.step_us = 50};
  const ModelSpec spec = known("llama-3.2-1b");
  const PlannedLoad load{.prompt_tokens = 64, .output_tokens = 16};
  const auto ttft_us = [&](int stages, bool divides_prompts) {
    return latency_of(spec, {.stages = stages}, load,
                      {.cost = cost, .divides_prompts = divides_prompts})
        .ttft_us;
  };
  EXPECT_NEAR(ttft_us(1, true), 6400 + 50, 1e-6);
  EXPECT_NEAR(ttft_us(2, false), 6400 + 50, 1e-6);
  EXPECT_NEAR(ttft_us(2, true), 6400 * 3 / 4.0 + 50, 1e-6);
  EXPECT_NEAR(ttft_us(4, true), 6400 * 7 / 16.0 + 50, 1e-6);
  // Reading the weights is not divided: each part of a prompt reads them.
  cost.of(Precision::kBf16) = {.step_us = 1000};
  EXPECT_NEAR(ttft_us(2, true), 1000 * 3 / 2.0 + 50, 1e-6);
}

// While an answer of ten tokens is drawn, three other requests end and three begin.
TEST(ConfigurationLatency, TokensWaitForThePromptsOfOtherRequests) {
  StepCost cost;
  cost.of(Precision::kBf16) = {.token_us = 100, .more_token_us = 100};
  const ModelSpec spec = known("llama-3.2-1b");
  const PlannedLoad load{.batch = 4, .prompt_tokens = 64, .output_tokens = 10};
  const Latency latency = latency_of(spec, {}, load, {.cost = cost});
  EXPECT_NEAR(latency.ttft_us, 6700, 1e-6);
  EXPECT_NEAR(latency.tpot_us, 400 + 0.3 * (6700 - 400), 1e-6);
  // Each of two stages computes half of the layers of all prompts and tokens.
  const Latency two =
      latency_of(spec, {.stages = 2}, load, {.cost = cost, .divides_prompts = true});
  EXPECT_NEAR(two.tpot_us, 200 + 0.3 * (3350 - 200), 1e-6);
}

TEST(ConfigurationLatency, PartsOfPromptsAreBlocksAndStepsOfServers) {
  StepCost cost;
  cost.of(Precision::kBf16) = {.token_us = 100, .more_token_us = 100};
  const ModelSpec spec = known("llama-3.2-1b");
  const auto ttft_us = [&](const PlannedLoad& load, const StepCost& steps) {
    return latency_of(spec, {.stages = 2}, load, {.cost = steps, .divides_prompts = true}).ttft_us;
  };
  EXPECT_NEAR(ttft_us({.prompt_tokens = 16}, cost), 1600, 1e-6) << "a block is not divided";
  EXPECT_NEAR(ttft_us({.prompt_tokens = 8192}, cost), 819200 * 5 / 8.0, 1e-3) << "four steps";
  // The two sequences that decode take part in one step each, and tokens are drawn of both and of
  // the prompt.
  cost.logits_at(Precision::kBf16) = {.row_us = 7};
  EXPECT_NEAR(ttft_us({.batch = 3, .prompt_tokens = 64}, cost), 6600 * 3 / 4.0 + 7 + 2 * 7, 1e-6);
  // Later parts attend to those before them.
  cost = {.context_token_us = 1};
  const double attended = 32 * 33 / 2.0 / 2 + 64 * 65 / 2.0 - 32 * 33 / 2.0;
  EXPECT_NEAR(ttft_us({.prompt_tokens = 64}, cost), attended, 1e-6);
}

TEST(DividedCost, SharesLayersAndAddsSums) {
  StepCost cost;
  cost.of(Precision::kBf16) = {.step_us = 1600, .token_us = 32, .more_token_us = 32};
  cost.kv_token_us = 4;
  const ModelSpec spec = known("llama-3.2-1b");
  const StepCost four = divided_cost(cost, spec, {.tensor = 4}, {.us = 3, .bytes_per_us = 8192});
  EXPECT_NEAR(four.of(Precision::kBf16).step_us, 1600 / 4.0 + 2 * 16 * 3, 1e-9);
  EXPECT_NEAR(four.of(Precision::kBf16).token_us, 32 / 4.0 + 2 * 16 * 1, 1e-9);
  EXPECT_NEAR(four.kv_token_us, 1, 1e-9);
}

TEST(DividedCost, SumsThatWereMeasuredReplaceThoseThatAreAssumed) {
  StepCost cost;
  cost.of(Precision::kBf16) = {
      .step_us = 1600, .token_us = 32, .sums = Transfer{.us = 2, .bytes_per_us = 4096}};
  cost.of(Precision::kW8) = {.step_us = 1600};
  cost.logits_at(Precision::kBf16).shared_us = 1;
  const ModelSpec spec = known("llama-3.2-1b");
  const Transfer assumed{.us = 3, .bytes_per_us = 8192};
  const auto shared_at = [&](const StepCost& from, Precision weights) {
    return divided_cost(from, spec, {.tensor = 2, .weights = weights}, assumed).of(weights);
  };
  EXPECT_NEAR(shared_at(cost, Precision::kBf16).step_us, 1600 / 2.0 + 2 * 16 * 2, 1e-9);
  EXPECT_NEAR(shared_at(cost, Precision::kBf16).token_us, 32 / 2.0 + 2 * 16 * 2, 1e-9);
  EXPECT_NEAR(shared_at(cost, Precision::kW8).step_us, 1600 / 2.0 + 2 * 16 * 3, 1e-9);
  EXPECT_TRUE(knows_sums(cost, std::array{Precision::kBf16}));
  EXPECT_FALSE(knows_sums(cost, std::array{Precision::kBf16, Precision::kW8}));
  EXPECT_NEAR(shared_at(scaled(cost, 3), Precision::kBf16).token_us,
              3 * shared_at(cost, Precision::kBf16).token_us, 1e-9);
}

TEST(DividedCost, TwoDevicesMayReadTheHeadNoFasterThanOne) {
  StepCost cost;
  cost.of(Precision::kBf16) = {.step_us = 1600, .sums = Transfer{}};
  cost.logits_at(Precision::kBf16) = {.step_us = 100, .row_us = 8};
  const ModelSpec spec = known("llama-3.2-1b");
  const auto head_us = [&](int tensor) {
    return divided_cost(cost, spec, {.tensor = tensor}, {}).logits_at(Precision::kBf16).step_us;
  };
  EXPECT_EQ(head_us(2), 50) << "nothing was measured";
  EXPECT_FALSE(knows_sums(cost, std::array{Precision::kBf16}));
  cost.logits_at(Precision::kBf16).shared_us = 90;
  EXPECT_EQ(head_us(1), 100);
  EXPECT_EQ(head_us(2), 90);
  EXPECT_EQ(head_us(4), 45);
  EXPECT_TRUE(knows_sums(cost, std::array{Precision::kBf16}));
  StepCost again = cost;
  again.logits_at(Precision::kBf16).shared_us.reset();
  add_sums(scaled(cost, 2), again);
  EXPECT_EQ(again.logits_at(Precision::kBf16).shared_us, 180);
  cost.logits_at(Precision::kBf16).shared_us = 3;
  EXPECT_EQ(head_us(2), 50) << "two are at most twice as fast";
}

// Estimates of steps that two devices share are the times that were measured.
TEST(DividedCost, LearnsSumsFromStepsThatTwoDevicesShare) {
  StepCost alone;
  alone.fixed_us = 10;
  alone.of(Precision::kW4) = {.step_us = 1600, .token_us = 32, .more_token_us = 30};
  const ModelSpec spec = known("llama-3.2-1b");
  // Two of the 16 layers.
  const auto timed = [&](double tokens, double us) {
    TimedStep step{.work = {.tokens = tokens}, .us = us};
    step.precision.layers[index_of(Precision::kW4)] = 1;
    return in_layers(step, 2, 16);
  };
  const TimedStep few = timed(1, 125);
  const TimedStep more = timed(64, 300);
  StepCost learned = alone;
  learned.of(Precision::kW4).sums = learned_sums(alone, spec, Precision::kW4, few, more);
  const StepCost shared =
      divided_cost(learned, spec, {.tensor = 2, .weights = Precision::kW4}, {.us = 1000});
  EXPECT_NEAR(predict_us(shared, few.work, few.precision), few.us, 1e-6);
  EXPECT_NEAR(predict_us(shared, more.work, more.precision), more.us, 1e-6);
  // Two devices are never estimated to be more than twice as fast.
  const Transfer fast = learned_sums(alone, spec, Precision::kW4, timed(1, 1), timed(64, 2));
  EXPECT_EQ(fast.us, 0);
  EXPECT_EQ(fast.time_us(1e6), 0);
}

TEST(DeviceProfile, ARooflineReadsOrMultiplies) {
  const auto device = find_device_profile("A40");
  ASSERT_TRUE(device.ok());
  const ModelSpec spec = known("llama-2-7b");
  const LayersCost dense = roofline_cost(*device, spec, 1, {}).of(Precision::kBf16);
  const LayersCost fewer =
      roofline_cost(*device, spec, 1, {.weights = Precision::kW4}).of(Precision::kW4);
  EXPECT_LT(fewer.step_us, 0.4 * dense.step_us);
  EXPECT_DOUBLE_EQ(fewer.more_token_us, dense.more_token_us);
  // Beyond the bend a row takes its multiplications.
  EXPECT_NEAR(dense.bend_tokens, 111e6 / 535e3, 1);
  EXPECT_FALSE(find_device_profile("A4").ok());
}

}  // namespace
}  // namespace protean
