#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "contract/step.h"
#include "cost/pages.h"
#include "fleet/fleet.h"

// A small model whose KV is the tokens themselves, for tests of groups.

namespace protean {

constexpr int kGroupBlockTokens = 4;
constexpr int kGroupLayers = 3;

// The token that follows a sequence, for any prefix.
inline TokenId token_following(std::span<const TokenId> sequence) {
  std::uint64_t hash = 7;
  for (const TokenId token : sequence) {
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 31;
  }
  return static_cast<TokenId>(hash % 1000);
}

inline ModelSpec group_spec() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = kGroupLayers;
  spec.hidden = 64;
  spec.ffn = 128;
  spec.vocab = 128;
  spec.attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
  return spec;
}

inline Form group_form(std::int64_t blocks, int shards = 4) {
  Form form = single_device_form(
      group_spec(), Precision::kF32, DeviceId{0},
      {.precision = KvPrecision::kF32, .block_tokens = kGroupBlockTokens, .blocks = blocks});
  form.shards = shards;
  form.group = {whole_model(kGroupLayers, shards, DeviceId{0})};
  return form;
}

inline EngineConfig group_engine(const Form& form, const PageBudget& budget, bool morphs) {
  const int devices = static_cast<int>(form.group.size());
  EngineConfig config{.scheduler = {.kv_blocks = form.kv.blocks,
                                    .block_tokens = kGroupBlockTokens,
                                    .max_num_seqs = 6 * devices,
                                    .max_num_batched_tokens = 32,
                                    .max_model_len = 2000}};
  if (morphs) {
    MorphConfig morph{.mode = MorphMode::kOff, .start = form};
    morph.bounds = {.spec = group_spec(), .budget = budget, .full = form};
    morph.bounds.ladder = {Precision::kF32};
    config.scheduler.largest_kv_blocks =
        std::max(form.kv.blocks, kv_blocks_that_fit(morph.bounds, form));
    config.morph = morph;
  }
  return config;
}

// Tokens by layer, block and place in the block.
class TokenKv {
 public:
  explicit TokenKv(std::int64_t blocks = 0) { resize(blocks); }
  void resize(std::int64_t blocks) {
    for (auto& layer : layers_) {
      layer.resize(static_cast<std::size_t>(blocks), std::vector<TokenId>(kGroupBlockTokens, -1));
    }
  }
  std::int64_t blocks() const { return std::ssize(layers_[0]); }
  std::vector<TokenId>& at(int layer, std::int64_t block) {
    return layers_[static_cast<std::size_t>(layer)].at(static_cast<std::size_t>(block));
  }
  void move(const BlockMove& move) {
    for (int layer = 0; layer < kGroupLayers; ++layer) {
      at(layer, move.to) = at(layer, move.from);
    }
  }
  // Loses a layer's blocks that are not named.
  void keep_only(int layer, const std::vector<BlockId>& live) {
    const std::set<BlockId> kept(live.begin(), live.end());
    for (BlockId block = 0; block < blocks(); ++block) {
      if (!kept.contains(block)) {
        at(layer, block).assign(kGroupBlockTokens, -1);
      }
    }
  }
  // Computes a plan, whose draws depend on all KV of their sequences in every layer.
  StepResult compute(const StepPlan& plan) {
    StepResult result{.id = plan.id, .sampled = std::vector<TokenId>(plan.samples.size())};
    for (const SequenceSlice& slice : plan.slices) {
      std::vector<TokenId> first;
      for (int layer = 0; layer < kGroupLayers; ++layer) {
        const auto cell = [&](int position) -> TokenId& {
          const auto index =
              static_cast<std::size_t>(slice.block_begin + position / kGroupBlockTokens);
          return at(layer,
                    plan.blocks[index])[static_cast<std::size_t>(position % kGroupBlockTokens)];
        };
        for (int i = 0; i < slice.token_count; ++i) {
          cell(slice.first_position + i) =
              plan.tokens[static_cast<std::size_t>(slice.token_begin + i)];
        }
        std::vector<TokenId> read;
        for (int position = 0; position < slice.first_position + slice.token_count; ++position) {
          read.push_back(cell(position));
        }
        if (layer == 0) {
          first = read;
        }
        EXPECT_EQ(read, first) << "request " << slice.request.value << " layer " << layer;
      }
      if (slice.sample >= 0) {
        result.sampled[static_cast<std::size_t>(slice.sample)] = token_following(first);
      }
    }
    return result;
  }

 private:
  std::array<std::vector<std::vector<TokenId>>, kGroupLayers> layers_;
};

}  // namespace protean
