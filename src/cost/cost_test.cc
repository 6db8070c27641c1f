#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "cost/memory.h"
#include "cost/step_time.h"
#include "cost/step_work.h"

namespace protean {
namespace {

// Returns the published sizes of Llama-3.2-1B.
ModelSpec llama_1b() {
  ModelSpec spec;
  spec.layers = 16;
  spec.hidden = 2048;
  spec.ffn = 8192;
  spec.vocab = 128256;
  spec.tied_embeddings = true;
  spec.attention = {.heads = 32, .kv_heads = 8, .head_dim = 64};
  return spec;
}

TEST(Memory, MatchesAKnownModel) {
  const ModelSpec spec = llama_1b();
  const std::int64_t total = spec.layers * layer_bytes(spec, Precision::kBf16) +
                             component_bytes(spec, Component::kEmbeddings, Precision::kBf16);
  // 1,235,814,400 parameters; norms are f32, so each of their elements has 2 more bytes.
  EXPECT_EQ(total, std::int64_t{1'235'814'400} * 2 + (2 * 16 + 1) * 2048 * 2);
  EXPECT_EQ(kv_token_bytes(spec, KvPrecision::kBf16), 32 * 1024);
  EXPECT_EQ(kv_token_bytes(spec, KvPrecision::kInt8), 16 * 1024 + 2 * 16 * 8 * 2);
  EXPECT_EQ(kv_block_bytes(spec, {.precision = KvPrecision::kF32, .block_tokens = 16}),
            1024 * 1024);
}

TEST(Memory, PadsOutputsToPanels) {
  ModelSpec spec = llama_1b();
  spec.vocab = 33;
  EXPECT_EQ(component_bytes(spec, Component::kEmbeddings, Precision::kBf16),
            64 * 2048 * 2 + 2048 * 4);
  spec.tied_embeddings = false;
  EXPECT_EQ(component_bytes(spec, Component::kEmbeddings, Precision::kBf16),
            2 * 64 * 2048 * 2 + 2048 * 4);
}

TEST(Memory, QuantisedLayersAndEmbeddingsCountTheirScales) {
  ModelSpec spec = llama_1b();
  spec.vocab = 33;
  const double weights = 60'817'408;  // of a layer's matrices
  const double vectors = 2 * 2048 * 4.0;
  const auto of = [&](Precision precision) {
    return (static_cast<double>(layer_bytes(spec, precision)) - vectors) / weights;
  };
  EXPECT_DOUBLE_EQ(of(Precision::kW8), 1 + 2.0 / 128);
  EXPECT_DOUBLE_EQ(of(Precision::kW4), 0.5 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(of(Precision::kW3), 0.375 + 4.0 / 128);
  EXPECT_EQ(component_bytes(spec, Component::kEmbeddings, Precision::kW8),
            64 * (2048 + 2048 / 128 * 2) + 2048 * 4);
  spec.stored.group = 32;
  EXPECT_EQ(component_bytes(spec, Component::kEmbeddings, Precision::kW8A8),
            64 * (2048 + 2048 / 32 * 2) + 2048 * 4);
}

TEST(StepTime, CountsContextTokenByToken) {
  StepPlan plan;
  plan.tokens.assign(4, 0);
  plan.slices = {{.first_position = 10, .token_count = 3},
                 {.first_position = 99, .token_count = 1}};
  EXPECT_DOUBLE_EQ(predict_us({.fixed_us = 5}, plan), 5);
  EXPECT_DOUBLE_EQ(predict_us({.token_us = 2}, plan), 8);
  EXPECT_DOUBLE_EQ(predict_us({.context_token_us = 1}, plan), 11 + 12 + 13 + 100);
}

StepPlan one_slice(int before, int tokens) {
  StepPlan plan;
  plan.tokens.assign(static_cast<std::size_t>(tokens), 0);
  plan.slices = {{.first_position = before, .token_count = tokens}};
  plan.samples.resize(1);
  return plan;
}

TEST(StepWork, CountsWhatEveryRowSees) {
  const StepWork work = work_of(one_slice(10, 3));
  EXPECT_EQ(work.tokens, 3);
  EXPECT_EQ(work.sequences, 1);
  EXPECT_EQ(work.logit_rows, 1);
  EXPECT_DOUBLE_EQ(work.context_tokens, 11 + 12 + 13);
  EXPECT_DOUBLE_EQ(work.kv_least_tokens, 13);
  EXPECT_DOUBLE_EQ(work.kv_tokens, 64) << "a whole tile";
  EXPECT_DOUBLE_EQ(work_of(one_slice(60, 5)).kv_tokens, 128);
}

TEST(StepWork, WindowsBoundWhatIsSeen) {
  ModelSpec spec = llama_1b();
  spec.attention.sliding_window = 12;
  for (const auto& [before, tokens] : {std::pair(0, 5), {0, 40}, {10, 3}, {8, 20}, {100, 7}}) {
    double seen = 0;
    for (int i = 1; i <= tokens; ++i) {
      seen += std::min(before + i, 12);
    }
    spec.attention.windowed.clear();
    const StepWork all = work_of(one_slice(before, tokens), spec);
    EXPECT_DOUBLE_EQ(all.context_tokens, seen);
    EXPECT_DOUBLE_EQ(all.kv_least_tokens, std::min(before + tokens, 11 + tokens));

    spec.attention.windowed.assign(static_cast<std::size_t>(spec.layers), true);
    std::fill_n(spec.attention.windowed.begin(), spec.layers / 4, false);
    const StepWork some = work_of(one_slice(before, tokens), spec);
    const StepWork none = work_of(one_slice(before, tokens));
    EXPECT_DOUBLE_EQ(some.context_tokens, none.context_tokens / 4 + all.context_tokens * 3 / 4);
  }
}

TEST(StepDemand, IsTheModelsWeightsOnceAndItsArithmetic) {
  const ModelSpec spec = llama_1b();
  const Form form =
      single_device_form(spec, Precision::kBf16, DeviceId{0}, {.precision = KvPrecision::kBf16});
  const StepDemand demand = demand_of(work_of(one_slice(99, 1)), spec, form);
  const double table = 128256.0 * 2048 * 2;
  const double layers = 16 * static_cast<double>(layer_bytes(spec, Precision::kBf16));
  EXPECT_DOUBLE_EQ(demand.weight_bytes, layers + table + 2048 * 2);
  EXPECT_DOUBLE_EQ(demand.kv_bytes, 100.0 * 32 * 1024);
  EXPECT_DOUBLE_EQ(demand.operations,
                   2 * (16 * 60'817'408.0 + 128256.0 * 2048) + 4.0 * 32 * 64 * 16 * 100);

  StepPlan silent = one_slice(0, 64);
  silent.samples.clear();
  const StepDemand prompt = demand_of(work_of(silent), spec, form);
  EXPECT_DOUBLE_EQ(prompt.weight_bytes, layers + 64 * 2048 * 2);
}

}  // namespace
}  // namespace protean
