#include "worker/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cost/memory.h"

namespace protean {
namespace {

ModelSpec spec_of(int layers, int kv_heads, int head_dim) {
  ModelSpec spec;
  spec.layers = layers;
  spec.attention = {.heads = kv_heads, .kv_heads = kv_heads, .head_dim = head_dim};
  return spec;
}

// Every slot's [first, last) byte, addressed as the kernels do.
TEST(KvStore, SlotsOfAllBlocksAndLayersTileTheMemory) {
  struct Case {
    int layers, kv_heads, head_dim, block_tokens;
    KvPrecision precision;
  };
  for (const Case& c :
       {Case{1, 1, 8, 1, KvPrecision::kBf16}, Case{3, 2, 16, 16, KvPrecision::kBf16},
        Case{5, 4, 8, 7, KvPrecision::kF32}, Case{2, 3, 64, 32, KvPrecision::kF32},
        Case{1, 1, 8, 1, KvPrecision::kInt8}, Case{3, 5, 24, 7, KvPrecision::kInt8}}) {
    const ModelSpec spec = spec_of(c.layers, c.kv_heads, c.head_dim);
    const KvForm form{.precision = c.precision, .block_tokens = c.block_tokens, .blocks = 9};
    const auto store = KvStore::create(spec, form);
    ASSERT_TRUE(store.ok());
    ASSERT_EQ(store->layers().size(), static_cast<std::size_t>(c.layers));
    EXPECT_EQ(store->block_bytes(), kv_block_bytes(spec, form));
    std::vector<std::pair<const std::byte*, const std::byte*>> slots;
    for (const cpu::KvLayer& layer : store->layers()) {
      const std::int64_t slot_bytes = layer.slot_bytes();
      for (std::int64_t block = 0; block < store->blocks(); ++block) {
        for (int head = 0; head < c.kv_heads; ++head) {
          const std::byte* first =
              layer.base + block * layer.block_stride_bytes + head * slot_bytes;
          slots.emplace_back(first, first + slot_bytes);
        }
      }
    }
    std::sort(slots.begin(), slots.end());
    for (std::size_t i = 1; i < slots.size(); ++i) {
      ASSERT_EQ(slots[i].first, slots[i - 1].second);  // neither overlap nor waste
    }
    EXPECT_EQ(slots.back().second - slots.front().first, 9 * store->block_bytes());
    EXPECT_LE(9 * store->block_bytes(), store->bytes());
  }
}

TEST(KvStore, RefusesWhatItCannotHold) {
  const ModelSpec spec = spec_of(4, 8, 128);
  for (const std::int64_t blocks :
       {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max(),
        std::int64_t{1} << 31, std::int64_t{1} << 50}) {
    EXPECT_FALSE(KvStore::create(spec, {.blocks = blocks}).ok()) << blocks;
  }
}

}  // namespace
}  // namespace protean
