#include "replica/sizing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/units.h"
#include "cost/kv_blocks_for_test.h"
#include "cost/memory.h"
#include "model/weights.h"
#include "replica/model_options.h"
#include "replica/sizing_scene_for_test.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

TEST(Sizing, DefaultsHoldEverySequenceAtFullLength) {
  const auto sizing = choose_sizing({.max_num_seqs = 10}, spec_of_1k_context(), kMachine);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  EXPECT_EQ(sizing->max_model_len, 1024);
  EXPECT_EQ(sizing->form.kv.blocks, 10 * 1024 / 16);
  EXPECT_EQ(sizing->kv_bytes, 10 * 1024 * kKiB);
  EXPECT_EQ(sizing->cpus.front().threads, 3);
  EXPECT_EQ(sizing->cpus.front().where.cpus, (std::vector{0, 1, 2}));
  EXPECT_TRUE(sizing->warnings.empty());
}

// Each layer's keys and values take whole pages, which are more bytes than few blocks have.
TEST(Sizing, AFewSequencesFitAtFullLengthInEveryDtype) {
  for (const char* dtype : {"bf16", "int8"}) {
    for (int sequences = 1; sequences < 4; ++sequences) {
      const auto sizing = choose_sizing({.kv_cache_dtype = dtype, .max_num_seqs = sequences},
                                        spec_of_1k_context(), kMachine);
      ASSERT_TRUE(sizing.ok()) << sizing.error().message;
      EXPECT_EQ(sizing->max_model_len, 1024) << dtype;
      EXPECT_EQ(sizing->form.kv.blocks, sequences * 1024 / 16) << dtype;
      EXPECT_TRUE(sizing->warnings.empty());
    }
  }
}

TEST(Sizing, KvHasADtypeOfItsOwn) {
  const ModelSpec spec = spec_of_1k_context();
  const auto token_bytes = [&](const ModelOptions& options) {
    const auto sizing = choose_sizing(options, spec, kMachine);
    return sizing.ok() ? sizing->kv_bytes / (sizing->form.kv.blocks * 16) : -1;
  };
  EXPECT_EQ(token_bytes({}), 1024);
  EXPECT_EQ(token_bytes({.dtype = "f32"}), 2048);
  EXPECT_EQ(token_bytes({.dtype = "f32", .kv_cache_dtype = "bf16"}), 1024);
  EXPECT_EQ(token_bytes({.kv_cache_dtype = "int8"}), 512 + 4 * 2 * 2 * 2);
  const auto refused = choose_sizing({.kv_cache_dtype = "fp8"}, spec, kMachine);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "--kv-cache-dtype fp8: use auto, bf16, f32 or int8");
}

TEST(Sizing, AutoTakesAtMostHalfOfTheFreeMemory) {
  Machine small = kMachine;
  const ModelSpec spec = spec_of_1k_context();
  const Form form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {});
  const std::int64_t page_bytes = page_bytes_for(spec);
  small.free_memory_bytes =
      weight_pages(spec, form, page_bytes) * page_bytes + activation_bytes(spec, 2048, 64) + kMiB;
  const auto sizing = choose_sizing({}, spec, small);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  EXPECT_EQ(sizing->kv_bytes, kMiB / 2);
  EXPECT_EQ(sizing->max_model_len, 512);  // lowered to what KV holds, with a warning
  ASSERT_EQ(sizing->warnings.size(), 1U);
}

// One process has a bounded number of mappings, and maps the pages of all devices.
TEST(Sizing, PagesAreLargerForMemoryOfManyDevicesThatOneProcessMaps) {
  const ModelSpec spec = spec_of_1k_context();
  Machine many = kMachine;
  many.free_memory_bytes = 64 * kGiB;
  const auto page_bytes_of = [&](int replicas) {
    const auto sizing = choose_sizing(
        {.device_memory = "1GiB", .group = {.replicas = replicas}, .max_num_seqs = 1024}, spec,
        many);
    return sizing.ok() ? sizing->budget.page_bytes : 0;
  };
  const std::int64_t one = page_bytes_of(1);
  EXPECT_GT(one, page_bytes_for(spec));
  EXPECT_EQ(page_bytes_of(3), 4 * one);
  many.maps_pages = false;
  EXPECT_EQ(page_bytes_of(1), page_bytes_for(spec));
  EXPECT_EQ(page_bytes_of(3), page_bytes_for(spec));
}

TEST(Sizing, DeviceMemoryBoundsWeightsKvAndActivationsTogether) {
  const ModelSpec spec = spec_of_1k_context();
  const auto sizing = choose_sizing({.device_memory = "16MiB"}, spec, kMachine);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  const PageBudget& budget = sizing->budget;
  const std::int64_t fixed = activation_bytes(spec, 2048, 64);
  EXPECT_LE(budget.pages * budget.page_bytes + fixed, 16 * kMiB);
  EXPECT_GT((budget.pages + 1) * budget.page_bytes + fixed, 16 * kMiB);
  EXPECT_EQ(budget.reserve, 0);
  const std::int64_t used = form_pages(spec, sizing->form, budget.page_bytes);
  EXPECT_LE(used, budget.pages);
  EXPECT_GT(used + spec.layers + 1, budget.pages) << "all the rest is KV";
  EXPECT_EQ(sizing->largest_kv_blocks, sizing->form.kv.blocks);
  EXPECT_NE(choose_sizing({.device_memory = "2GiB"}, spec, kMachine)
                .error()
                .message.find("--device-memory 2GiB: only 1.00 GiB are free"),
            std::string::npos);
}

TEST(Sizing, EachRemedyForTooLittleDeviceMemoryWorks) {
  const ModelSpec spec = spec_of_1k_context();
  int fewer_tokens = 0;
  for (int mib = 1; mib < 16; ++mib) {
    ModelOptions options{.max_model_len = "1024", .device_memory = fmt::format("{}MiB", mib)};
    const auto refused = choose_sizing(options, spec, kMachine);
    if (refused.ok()) {
      continue;
    }
    const std::string& message = refused.error().message;
    const std::string memory = named_value(message, "use --device-memory");
    ASSERT_NE(memory, "") << message;
    ModelOptions larger = options;
    larger.device_memory = memory;
    EXPECT_TRUE(choose_sizing(larger, spec, kMachine).ok()) << message;
    const std::string tokens = named_value(message, "--max-num-batched-tokens");
    if (!tokens.empty()) {
      options.max_num_batched_tokens = std::stoi(tokens);
      const auto sizing = choose_sizing(options, spec, kMachine);
      EXPECT_TRUE(sizing.ok()) << message << "; then: " << sizing.error().message;
      ++fewer_tokens;
    }
  }
  EXPECT_GT(fewer_tokens, 0);
}

// Returns the pages that KV can lend if it keeps a block.
std::int64_t pages_to_lend(const Sizing& sizing, const ModelSpec& spec) {
  Form one = sizing.form;
  one.kv.blocks = 1;
  return sizing.budget.pages - form_pages(spec, one, sizing.budget.page_bytes);
}

// No page is kept free for swaps.
TEST(Sizing, AFormThatMayChangeHasTheBlocksOfOneThatDoesNotAndLendsThemToSwaps) {
  const ModelSpec spec = spec_of_1k_context();
  int both = 0;
  for (int kib = 8 * 1024; kib < 40 * 1024; kib += 611) {
    ModelOptions options{.device_memory = fmt::format("{}KiB", kib)};
    const auto fixed = choose_sizing(options, spec, kMachine);
    options.ladder = {Precision::kW8, Precision::kW4};
    const auto sizing = choose_sizing(options, spec, kMachine);
    if (!sizing.ok()) {
      continue;
    }
    ++both;
    ASSERT_TRUE(fixed.ok());
    EXPECT_EQ(sizing->form.kv.blocks, fixed->form.kv.blocks) << kib;
    EXPECT_EQ(sizing->budget.reserve, 0);
    EXPECT_GE(pages_to_lend(*sizing, spec),
              component_pages(spec, Component::kMlp, Precision::kW8, sizing->budget.page_bytes));
  }
  EXPECT_GT(both, 20);
}

TEST(Sizing, LayersThatMayBeLoweredAllowLongerSequences) {
  const ModelSpec spec = spec_of_1k_context();
  const auto fixed = choose_sizing({.device_memory = "13MiB"}, spec, kMachine);
  const auto sizing = choose_sizing(
      {.device_memory = "13MiB", .ladder = {Precision::kW8, Precision::kW4}}, spec, kMachine);
  ASSERT_TRUE(fixed.ok() && sizing.ok());
  const PageBudget& budget = sizing->budget;
  EXPECT_GT(sizing->largest_kv_blocks, fixed->form.kv.blocks);
  Form lowest = sizing->form;
  lowest.layer_precision.assign(4, {Precision::kW4, Precision::kW4});
  lowest.embeddings = Precision::kW8;
  lowest.kv.blocks = sizing->largest_kv_blocks;
  EXPECT_LE(form_pages(spec, lowest, budget.page_bytes), budget.pages);
  for (const std::string kv : {"auto", "1MiB"}) {
    const auto begun =
        choose_sizing({.kv_cache_memory = kv, .device_memory = "13MiB", .ladder = {Precision::kW8}},
                      spec, kMachine);
    ASSERT_TRUE(begun.ok()) << begun.error().message;
    const std::int64_t page_bytes = begun->budget.page_bytes;
    EXPECT_EQ(
        begun->form.kv.blocks,
        kv_blocks_in(spec, begun->form.kv,
                     begun->budget.pages - weight_pages(spec, begun->form, page_bytes), page_bytes))
        << kv << ": there is a form to come back to";
  }
}

TEST(Sizing, ALongerContextThanTheCheckpointsIsAllowedWithAWarning) {
  const auto sizing = choose_sizing({.max_model_len = "2048"}, spec_of_1k_context(), kMachine);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  EXPECT_EQ(sizing->max_model_len, 2048);
  ASSERT_EQ(sizing->warnings.size(), 1U);
  EXPECT_NE(sizing->warnings[0].find("1024"), std::string::npos);
}

TEST(Sizing, QuantisedLayersKeepTheirKeysAndValuesInBf16) {
  const ModelSpec spec = spec_of_1k_context();
  const auto bf16 = choose_sizing({.dtype = "bf16"}, spec, kMachine);
  for (const auto& [dtype, precision] : {std::pair{"w8", Precision::kW8},
                                         {"w4", Precision::kW4},
                                         {"w3", Precision::kW3},
                                         {"w8a8", Precision::kW8A8},
                                         {"w8a7", Precision::kW8A7},
                                         {"w4a8", Precision::kW4A8}}) {
    const auto sizing = choose_sizing({.dtype = dtype}, spec, kMachine);
    ASSERT_TRUE(sizing.ok()) << sizing.error().message;
    EXPECT_EQ(sizing->form.layer_precision,
              (std::vector<LayerPrecision>(4, {precision, precision})));
    EXPECT_EQ(sizing->form.kv.precision, KvPrecision::kBf16);
    EXPECT_EQ(sizing->kv_bytes, bf16->kv_bytes);
    EXPECT_EQ(sizing->weight_bytes, 4 * layer_bytes(spec, precision) +
                                        component_bytes(spec, Component::kEmbeddings,
                                                        default_embeddings_precision(precision)));
    EXPECT_EQ(sizing->form.embeddings, default_embeddings_precision(precision));
  }
}

TEST(Sizing, AQuantisedCheckpointStaysWhatItIsUnlessAsked) {
  ModelSpec spec = spec_of_1k_context();
  spec.stored = {.precision = Precision::kW4, .group = 32};
  const auto precision_at = [&](const ModelOptions& options) {
    return choose_sizing(options, spec, kMachine)->form.layer_precision.front().mlp;
  };
  EXPECT_EQ(precision_at({}), Precision::kW4);
  EXPECT_EQ(precision_at({.dtype = "bf16"}), Precision::kBf16);
  const auto coarse = choose_sizing({.dtype = "w4"}, spec_of_1k_context(), kMachine);
  EXPECT_GT(choose_sizing({}, spec, kMachine)->weight_bytes, coarse->weight_bytes) << "more scales";
}

// The value projection and ffn_down of every second layer have more bits.
ModelSpec spec_of_mixed_types() {
  ModelSpec spec = spec_of_1k_context();
  spec.stored = {.precision = Precision::kW8, .group = 32};
  spec.stored.layers = {{Precision::kW8, Precision::kW8},
                        {Precision::kW4, Precision::kW4},
                        {Precision::kW4, Precision::kW8},
                        {Precision::kW4, Precision::kW4}};
  return spec;
}

TEST(Sizing, EachHalfStartsAtWhatTheCheckpointKeepsItInUnlessAsked) {
  const ModelSpec spec = spec_of_mixed_types();
  const auto sizing = choose_sizing({}, spec, kMachine);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  EXPECT_EQ(sizing->form.layer_precision, spec.stored.layers);
  EXPECT_EQ(sizing->form.embeddings, Precision::kW8);
  const auto halves = [&](Component half, Precision precision, int count) {
    return count * component_bytes(spec, half, precision);
  };
  EXPECT_EQ(sizing->weight_bytes,
            halves(Component::kAttention, Precision::kW8, 1) +
                halves(Component::kAttention, Precision::kW4, 3) +
                halves(Component::kMlp, Precision::kW8, 2) +
                halves(Component::kMlp, Precision::kW4, 2) +
                component_bytes(spec, Component::kEmbeddings, Precision::kW8));
  for (const auto& [dtype, precision] : {std::pair{"w8", Precision::kW8},
                                         {"w4", Precision::kW4},
                                         {"w4a8", Precision::kW4A8},
                                         {"bf16", Precision::kBf16}}) {
    const auto asked = choose_sizing({.dtype = dtype}, spec, kMachine);
    ASSERT_TRUE(asked.ok()) << asked.error().message;
    EXPECT_EQ(asked->form.layer_precision,
              (std::vector<LayerPrecision>(4, {precision, precision})));
    EXPECT_EQ(asked->weight_bytes, 4 * layer_bytes(spec, precision) +
                                       component_bytes(spec, Component::kEmbeddings,
                                                       default_embeddings_precision(precision)));
  }
}

TEST(Sizing, AMixedStartLeavesRoomForWhatItsHalvesBecomeAndRaisesNone) {
  ModelSpec spec = spec_of_mixed_types();
  const auto lowered =
      choose_sizing({.device_memory = "13MiB", .ladder = {Precision::kW3}}, spec, kMachine);
  ASSERT_TRUE(lowered.ok()) << lowered.error().message;
  EXPECT_GE(pages_to_lend(*lowered, spec),
            component_pages(spec, Component::kMlp, Precision::kW4, lowered->budget.page_bytes))
      << "an operator may bring a half back to what it started at";
  std::replace(spec.stored.layers.begin(), spec.stored.layers.end(),
               LayerPrecision{Precision::kW8, Precision::kW8},
               LayerPrecision{Precision::kBf16, Precision::kBf16});
  const auto sizing =
      choose_sizing({.device_memory = "13MiB", .ladder = {Precision::kW8}}, spec, kMachine);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  Form lowest = sizing->form;
  lowest.layer_precision[0] = {Precision::kW8, Precision::kW8};
  lowest.embeddings = Precision::kW8;
  const PageBudget& budget = sizing->budget;
  EXPECT_EQ(
      sizing->largest_kv_blocks,
      kv_blocks_in(spec, lowest.kv, budget.pages - weight_pages(spec, lowest, budget.page_bytes),
                   budget.page_bytes));
}

// Q4_K_M files mix types like this.
TEST(Sizing, AFileOfMixedTypesTakesTheBytesThatItsHalvesNeed) {
  ModelSpec written = spec_of_1k_context();
  written.layers = 8;
  written.hidden = 256;  // rows of whole blocks
  written.attention.heads = 8;
  const TemporaryDirectory directory;
  const auto path = directory.path() / "mixed.gguf";
  write_gguf_checkpoint(path, written, {.type = GgufType::kQ4_K, .more = GgufType::kQ6_K});
  const auto checkpoint = open_checkpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto bytes_at = [&](const std::string& dtype) -> std::int64_t {
    const auto sizing = choose_sizing({.dtype = dtype}, (*checkpoint)->spec(), kMachine);
    EXPECT_TRUE(sizing.ok()) << sizing.error().message;
    const auto weights =
        load_weights(**checkpoint, sizing->form.layer_precision, sizing->form.embeddings);
    EXPECT_TRUE(weights.ok()) << weights.error().message;
    const std::int64_t pieces = 8 * 9 + 3;  // each aligned to 64 bytes
    EXPECT_GE(weights->bytes(), sizing->weight_bytes) << dtype;
    EXPECT_LE(weights->bytes(), sizing->weight_bytes + pieces * 64) << dtype;
    return weights->bytes();
  };
  const std::int64_t mixed = bytes_at("auto");
  EXPECT_LT(mixed, bytes_at("w8"));
  EXPECT_GT(mixed, bytes_at("w4"));
}

TEST(Sizing, WhatDoesNotFitIsRefusedWithARemedy) {
  const ModelSpec spec = spec_of_1k_context();
  const auto message = [&](const ModelOptions& options, const Machine& machine = kMachine) {
    const auto sizing = choose_sizing(options, spec, machine);
    return sizing.ok() ? std::string() : sizing.error().message;
  };
  EXPECT_NE(message({.max_model_len = "1024", .kv_cache_memory = "512KiB"})
                .find("give --kv-cache-memory 1MiB"),
            std::string::npos);
  EXPECT_NE(message({.kv_cache_memory = "2GiB"}).find("ask for less"), std::string::npos);
  EXPECT_NE(message({.kv_cache_memory = "much"}).find("--kv-cache-memory"), std::string::npos);
  EXPECT_NE(message({.kv_cache_memory = "1KiB"}).find("not one block of 16 tokens"),
            std::string::npos);
  EXPECT_NE(message({.dtype = "fp4"}).find("bf16, f32, s24, w8, w4, w3, w8a8, w8a7 or w4a8"),
            std::string::npos);
  EXPECT_NE(message({.max_model_len = "1"}).find("--max-model-len 1"), std::string::npos);
  EXPECT_NE(message({.max_model_len = "12k"}).find("--max-model-len 12k"), std::string::npos);
  Machine full = kMachine;
  full.free_memory_bytes = 1;
  EXPECT_NE(message({}, full).find("smaller model"), std::string::npos);
}

TEST(Sizing, MemoryOfEachDeviceMayBeGivenWithoutItsCpus) {
  const ModelSpec spec = spec_of_1k_context();
  ModelOptions options{
      .group = {.replicas = 2, .memory = {60 * kMiB, 22 * kMiB}, .memory_file = "cluster.toml"}};
  const auto sizing = choose_sizing(options, spec, kMachine);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  ASSERT_EQ(sizing->unequal.size(), 2U);
  EXPECT_GT(sizing_of(*sizing, 0).form.kv.blocks, sizing_of(*sizing, 1).form.kv.blocks);
  EXPECT_GT(sizing->device_bytes, 22 * kMiB);
  EXPECT_LE(sizing->device_bytes, 60 * kMiB);
  options.group.memory.push_back(kMiB);
  const auto three = choose_sizing(options, spec, kMachine);
  ASSERT_FALSE(three.ok());
  EXPECT_EQ(three.error().message,
            "cluster.toml: it has the memory of 3 devices, and the replicas take 2: change "
            "--data-parallel-size, --tensor-parallel-size or --pipeline-parallel-size");
  options.group.memory = {60 * kMiB, kMiB};
  const auto little = choose_sizing(options, spec, kMachine);
  ASSERT_FALSE(little.ok());
  EXPECT_NE(little.error().message.find("MiB\" in cluster.toml"), std::string::npos)
      << little.error().message;
}

}  // namespace
}  // namespace protean
