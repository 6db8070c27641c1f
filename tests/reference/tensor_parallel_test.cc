// Tensor parallelism without devices: a thread stands for each device, with its own shards of the
// weights, its own heads of the KV cache and its own team. The results must have the bits of TP 1.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cpu/shared_exchange.h"
#include "model/forward.h"
#include "model/rope_table.h"
#include "model/synthetic_checkpoint.h"

namespace protean {
namespace {

constexpr int kTokensOfABlock = 8;
constexpr int kStoreBlocks = 24;
constexpr int kMaxRows = 64;

enum class Traits { kPlain, kAll, kNormsAround, kParallel, kNormOverHeads };

const char* name_of(Traits traits) {
  constexpr const char* kNames[] = {"_plain", "_all", "_norms_around", "_parallel",
                                    "_norm_over_heads"};
  return kNames[static_cast<int>(traits)];
}

ModelSpec spec_with(int ffn, Traits traits) {
  ModelSpec spec;
  spec.architecture = "synthetic";
  spec.layers = 3;
  spec.hidden = 96;
  spec.ffn = ffn;
  spec.vocab = 101;
  spec.max_context = 256;
  spec.attention = {.heads = 8, .kv_heads = 4, .head_dim = 16};
  if (traits == Traits::kAll) {
    spec.attention.qkv_bias = spec.attention.output_bias = spec.attention.qk_norm = true;
    spec.attention.sliding_window = 20;
  } else if (traits == Traits::kNormsAround) {
    spec.norms.after = true;
    spec.mlp.activation = Activation::kGeluTanh;
    spec.multipliers = {.embedding = 3.0F, .residual = 0.3F, .logits = 0.5F, .logit_cap = 2.0F};
  } else if (traits == Traits::kParallel) {
    spec.parallel_halves = spec.output_bias = spec.learned_positions = true;
    spec.norms = {.layer_norm = true, .bias = true};
    spec.mlp = {.activation = Activation::kGelu, .gated = false, .bias = true};
    spec.attention.qkv_bias = spec.attention.output_bias = true;
  } else if (traits == Traits::kNormOverHeads) {
    spec.attention.qk_norm = spec.attention.qk_norm_over_heads = true;
    spec.norms = {.before = false, .after = true};
  }
  return spec;
}

struct Step {
  int sequence = 0;
  int first_position = 0;
  std::vector<TokenId> tokens;
};

// One device of a stage and everything that it owns.
class Device {
 public:
  Device(const Checkpoint& checkpoint, Precision precision, const Holding& holding, int shards,
         int threads)
      : spec_(checkpoint.spec()), team_(threads), rope_(spec_, spec_.max_context) {
    const std::vector<LayerPrecision> layers(static_cast<std::size_t>(spec_.layers),
                                             {precision, precision});
    auto weights = load_weights(checkpoint,
                                {layers, default_embeddings_precision(precision), holding, shards});
    check(weights.ok(), weights.ok() ? "" : weights.error().message);
    weights_ = std::move(*weights);
    const ShardRun& run = holding.embeddings;
    auto scratch =
        Scratch::create(spec_, kMaxRows, kMaxRows,
                        {.shards = shards, .held = run.count, .exchanges = run.count < shards});
    check(scratch.ok(), "the scratch is small");
    scratch_ = std::move(*scratch);
    cpu::KvLayer layer{
        .element = precision == Precision::kF32 ? cpu::KvElement::kF32 : cpu::KvElement::kBf16,
        .kv_heads = spec_.attention.kv_heads / shards * run.count,
        .head_dim = spec_.attention.head_dim,
        .block_tokens = kTokensOfABlock};
    layer.block_stride_bytes = layer.kv_heads * layer.slot_bytes();
    kv_bytes_.resize(static_cast<std::size_t>(spec_.layers));
    for (auto& bytes : kv_bytes_) {
      bytes.resize(static_cast<std::size_t>(kStoreBlocks * layer.block_stride_bytes));
      layer.base = bytes.data();
      kv_.push_back(layer);
    }
  }

  // Returns the logits of every row.
  std::vector<float> run(const std::vector<Step>& steps, cpu::Exchange* exchange) {
    std::vector<TokenId> tokens;
    std::vector<int> positions;
    std::vector<std::vector<BlockId>> blocks;
    std::vector<cpu::AttentionSlice> slices;
    blocks.reserve(steps.size());
    for (const Step& step : steps) {
      // Sequences share the store block by block.
      blocks.emplace_back(kStoreBlocks / 2);
      std::generate(blocks.back().begin(), blocks.back().end(),
                    [next = step.sequence]() mutable { return std::exchange(next, next + 2); });
      slices.push_back({.first_row = static_cast<int>(tokens.size()),
                        .rows = static_cast<int>(step.tokens.size()),
                        .first_position = step.first_position,
                        .blocks = blocks.back()});
      for (std::size_t i = 0; i < step.tokens.size(); ++i) {
        tokens.push_back(step.tokens[i]);
        positions.push_back(step.first_position + static_cast<int>(i));
      }
    }
    const Forward forward({.team = &team_,
                           .spec = &spec_,
                           .weights = &weights_,
                           .rope = rope_.view(),
                           .kv = kv_,
                           .scratch = &scratch_,
                           .exchange = exchange});
    const ForwardBatch batch{.tokens = tokens, .positions = positions, .slices = slices};
    forward.embed(batch);
    forward.run_layers(batch, {0, spec_.layers});
    std::vector<int> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    const auto logits = forward.project_logits(rows);
    return {logits.begin(), logits.end()};
  }

 private:
  ModelSpec spec_;
  cpu::Team team_;
  RotaryTables rope_;
  ModelWeights weights_;
  Scratch scratch_ = *Scratch::create(spec_, 1, 1);
  std::vector<std::vector<std::byte>> kv_bytes_;
  std::vector<cpu::KvLayer> kv_;
};

// Computes two prompts, one of them in two chunks, then decodes both.
std::vector<std::vector<Step>> some_steps(int vocab) {
  std::mt19937 random(5);
  const auto draw = [&](int count) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(count));
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(random() % static_cast<std::uint32_t>(vocab));
    }
    return tokens;
  };
  std::vector<std::vector<Step>> steps = {{{0, 0, draw(37)}}, {{0, 37, draw(6)}, {1, 0, draw(21)}}};
  for (int i = 0; i < 4; ++i) {
    steps.push_back({{0, 43 + i, draw(1)}, {1, 21 + i, draw(1)}});
  }
  return steps;
}

// Returns the members of everything when shards are divided evenly.
cpu::GroupMembers members_of(int devices, int shards, int layers) {
  std::vector<cpu::Member> all;
  for (int device = 0; devices > 1 && device < devices; ++device) {
    all.push_back({device, device * (shards / devices), shards / devices});
  }
  const std::vector<std::vector<cpu::Member>> each(static_cast<std::size_t>(layers), all);
  return {all, each, each, all};
}

// Returns the logits of every step as one vector.
std::vector<float> run_on(const Checkpoint& checkpoint, Precision precision, int devices,
                          int shards, int threads) {
  const int layers = checkpoint.spec().layers;
  cpu::ExchangeBoard board(devices, false);
  const cpu::GroupMembers members = members_of(devices, shards, layers);
  std::vector<std::vector<float>> logits(static_cast<std::size_t>(devices));
  std::vector<std::unique_ptr<Device>> made(static_cast<std::size_t>(devices));  // read by others
  std::vector<std::thread> running;
  for (int i = 0; i < devices; ++i) {
    running.emplace_back([&, i] {
      const ShardRun run{i * (shards / devices), shards / devices};
      Holding holding = whole_model(layers, shards, DeviceId{i});
      holding.embeddings = run;
      for (Holding::Layer& layer : holding.layers) {
        layer = {run, run};
      }
      auto& device = made[static_cast<std::size_t>(i)];
      device = std::make_unique<Device>(checkpoint, precision, holding, shards, threads);
      cpu::SharedExchange exchange(board, i, members, layers);
      auto& all = logits[static_cast<std::size_t>(i)];
      std::uint64_t number = 0;
      for (const std::vector<Step>& step : some_steps(checkpoint.spec().vocab)) {
        exchange.begin_step(++number);
        const std::vector<float> got = device->run(step, devices == 1 ? nullptr : &exchange);
        all.insert(all.end(), got.begin(), got.end());
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  for (const std::vector<float>& others : logits) {
    EXPECT_EQ(std::memcmp(others.data(), logits[0].data(), logits[0].size() * sizeof(float)), 0)
        << "devices of a stage end with the same rows";
  }
  return logits[0];
}

class TensorParallel : public testing::TestWithParam<std::tuple<Precision, int, Traits>> {};

TEST_P(TensorParallel, EveryDegreeHasTheSameBits) {
  const auto [precision, ffn, traits] = GetParam();
  const SyntheticCheckpoint checkpoint(spec_with(ffn, traits));
  for (const int shards : {2, 4}) {
    const std::vector<float> alone = run_on(checkpoint, precision, 1, shards, 1);
    for (int devices = 1; devices <= shards; devices *= 2) {
      for (const int threads : {1, 2}) {
        const std::vector<float> got = run_on(checkpoint, precision, devices, shards, threads);
        ASSERT_EQ(got.size(), alone.size());
        EXPECT_EQ(std::memcmp(got.data(), alone.data(), got.size() * sizeof(float)), 0)
            << devices << " devices of " << shards << " shards, " << threads << " threads each";
      }
    }
  }
}

// 104 neurons are 26 for each of 4 shards, so every shard has padding.
INSTANTIATE_TEST_SUITE_P(Precisions, TensorParallel,
                         testing::Combine(testing::ValuesIn(kPrecisions), testing::Values(128, 104),
                                          testing::Values(Traits::kPlain, Traits::kAll,
                                                          Traits::kNormsAround, Traits::kParallel,
                                                          Traits::kNormOverHeads)),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) + "_ffn" +
                                  std::to_string(std::get<1>(info.param)) +
                                  name_of(std::get<2>(info.param));
                         });

}  // namespace
}  // namespace protean
