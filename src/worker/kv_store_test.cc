#include "worker/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "cost/memory.h"
#include "cost/pages.h"

namespace protean {
namespace {

ModelSpec spec_of(int layers, int kv_heads, int head_dim) {
  ModelSpec spec;
  spec.layers = layers;
  spec.attention = {.heads = kv_heads, .kv_heads = kv_heads, .head_dim = head_dim};
  return spec;
}

// Returns the bytes [first, last) of every slot, addressed as the kernels address them.
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
    const auto created = KvStore::create(spec, form);
    ASSERT_TRUE(created.ok());
    const KvStore* store = created->get();
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
      ASSERT_EQ(slots[i].first, slots[i - 1].second);  // no overlap and no gap
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

// Pages of 4 KiB and blocks of 1.5 KiB, so that some blocks lie on two pages.
struct PagedScene {
  ModelSpec spec = spec_of(3, 2, 16);
  KvForm form{.precision = KvPrecision::kBf16, .block_tokens = 4, .blocks = 10};
  std::unique_ptr<cpu::PagePool> pool = *cpu::PagePool::create(4096, 64);
  std::unique_ptr<KvStore> store = *KvStore::create(spec, form, *pool);

  std::int64_t pages(std::int64_t blocks) const {
    KvForm other = form;
    other.blocks = blocks;
    return kv_pages(spec, other, 4096);
  }
  std::byte* block(std::int64_t id) const {
    return store->layers().front().base + id * store->block_bytes();
  }
  void fill(std::int64_t id) const {
    std::memset(block(id), static_cast<int>(id) + 1,
                static_cast<std::size_t>(store->block_bytes()));
  }
  bool holds(std::int64_t id, std::int64_t content) const {
    return std::all_of(block(id), block(id) + store->block_bytes(),
                       [&](std::byte b) { return b == static_cast<std::byte>(content + 1); });
  }
};

TEST(KvStore, OnPagesItGrowsAndShrinksAndBlocksStay) {
  const PagedScene scene;
  KvStore& store = *scene.store;
  ASSERT_EQ(store.block_bytes(), 1536);
  EXPECT_EQ(scene.pool->free_pages(), 64 - scene.pages(10));
  EXPECT_EQ(store.bytes(), scene.pages(10) * 4096);
  for (int id = 0; id < 10; ++id) {
    scene.fill(id);
  }
  ASSERT_TRUE(store.grow(100).ok());
  EXPECT_EQ(store.blocks(), 100);
  EXPECT_EQ(scene.pool->free_pages(), 64 - scene.pages(100));
  scene.fill(99);
  for (int id = 0; id < 10; ++id) {
    EXPECT_TRUE(scene.holds(id, id));
  }
  store.limit(7);
  EXPECT_EQ(store.blocks(), 7);
  EXPECT_EQ(scene.pool->free_pages(), 64 - scene.pages(100)) << "pages leave with shrink()";
  store.shrink();
  EXPECT_EQ(scene.pool->free_pages(), 64 - scene.pages(7));
  for (int id = 0; id < 7; ++id) {
    EXPECT_TRUE(scene.holds(id, id));
  }
}

TEST(KvStore, GrowsToAllPagesAndNoFurther) {
  const PagedScene scene;
  const std::int64_t most = kv_blocks_in(scene.spec, scene.form, 64, 4096);
  const Status refused = scene.store->grow(most + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(scene.store->blocks(), 10);
  ASSERT_TRUE(scene.store->grow(most).ok());
  scene.fill(most - 1);
  EXPECT_EQ(scene.pool->free_pages(), 0);
  const Status stopped = [&] {
    scene.store->limit(10);
    scene.store->shrink();
    return scene.store->grow(most, [] { return false; });
  }();
  EXPECT_EQ(stopped.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(scene.store->blocks(), 10);
  EXPECT_EQ(scene.pool->free_pages(), 64 - scene.pages(10));
}

TEST(KvStore, WithoutPagesItDoesNotGrow) {
  const PagedScene scene;
  const auto fixed = KvStore::create(scene.spec, scene.form);
  ASSERT_TRUE(fixed.ok());
  EXPECT_EQ((*fixed)->grow(20).error().code, ErrorCode::kUnsupported);
}

TEST(KvStore, CopiesBlocksWholeInAnyNumberOfParts) {
  const PagedScene scene;
  for (const int parts : {1, 2, 7}) {
    for (int id = 0; id < 10; ++id) {
      scene.fill(id);
    }
    for (int part = 0; part < parts; ++part) {
      scene.store->copy(*scene.store, {.from = 9, .to = 3}, part, parts);
    }
    EXPECT_TRUE(scene.holds(3, 9));
    EXPECT_TRUE(scene.holds(2, 2));
    EXPECT_TRUE(scene.holds(4, 4));
  }
}

}  // namespace
}  // namespace protean
