#include "worker/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cost/kv_blocks_for_test.h"
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

Holding whole(const ModelSpec& spec, int shards = 1) {
  return whole_model(spec.layers, shards, DeviceId{0});
}

// The slots of a store, addressed as the kernels address them, must tile its memory.
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
    const auto created = KvStore::create({spec, whole(spec), 1, form});
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

TEST(KvStore, HasTheHeadsOfItsShardsInTheLayersThatItHolds) {
  const ModelSpec spec = spec_of(4, 8, 16);
  Holding holding = whole(spec, 4);
  holding.layers[0] = {};
  holding.layers[1].attention = {2, 2};
  holding.layers[2].attention = {3, 1};
  const KvForm form{.block_tokens = 4, .blocks = 10};
  const auto pool = *cpu::PagePool::create(4096, 64);
  const auto store = *KvStore::create({spec, holding, 4, form}, *pool);
  std::vector<int> heads;
  for (const cpu::KvLayer& layer : store->layers()) {
    heads.push_back(layer.kv_heads);
    EXPECT_EQ(layer.base == nullptr, layer.kv_heads == 0);
  }
  EXPECT_EQ(heads, (std::vector<int>{0, 4, 2, 8}));
  EXPECT_EQ(store->block_bytes(), kv_layer_block_bytes(spec, form) * 7 / 4);
  Form whole_form = single_device_form(spec, Precision::kBf16, DeviceId{0}, form);
  whole_form.shards = 4;
  whole_form.group = {holding};
  EXPECT_EQ(store->bytes(), kv_pages_on(spec, whole_form, 0, 4096) * 4096);
}

TEST(KvStore, RefusesWhatItCannotHold) {
  const ModelSpec spec = spec_of(4, 8, 128);
  for (const std::int64_t blocks :
       {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max(),
        std::int64_t{1} << 31, std::int64_t{1} << 50}) {
    EXPECT_FALSE(KvStore::create({spec, whole(spec), 1, {.blocks = blocks}}).ok()) << blocks;
  }
}

// Pages of 4 KiB and slots of 512 bytes in each of 3 layers, 1.5 KiB for a block.
struct PagedScene {
  ModelSpec spec = spec_of(3, 2, 16);
  KvForm form{.precision = KvPrecision::kBf16, .block_tokens = 4, .blocks = 10};
  std::unique_ptr<cpu::PagePool> pool = *cpu::PagePool::create(4096, 64);
  std::unique_ptr<KvStore> store = *KvStore::create({spec, whole(spec), 1, form}, *pool);

  std::int64_t pages(std::int64_t blocks) const {
    KvForm other = form;
    other.blocks = blocks;
    return kv_pages(spec, other, 4096);
  }
  // The block's bytes in one layer.
  std::span<std::byte> block(const cpu::KvLayer& layer, std::int64_t id) const {
    return {layer.base + id * layer.block_stride_bytes,
            static_cast<std::size_t>(layer.block_stride_bytes)};
  }
  static std::byte content_of(std::int64_t id, std::size_t layer) {
    return static_cast<std::byte>(id * 3 + static_cast<std::int64_t>(layer) + 1);
  }
  void fill(std::int64_t id) const {
    for (std::size_t layer = 0; layer < store->layers().size(); ++layer) {
      const auto bytes = block(store->layers()[layer], id);
      std::fill(bytes.begin(), bytes.end(), content_of(id, layer));
    }
  }
  bool holds(std::int64_t id, std::int64_t content) const {
    bool all = true;
    for (std::size_t layer = 0; layer < store->layers().size(); ++layer) {
      const auto bytes = block(store->layers()[layer], id);
      all = all && std::all_of(bytes.begin(), bytes.end(),
                               [&](std::byte b) { return b == content_of(content, layer); });
    }
    return all;
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

// As a device of another group does that hung within a copy and was given up: what it copies is not
// wanted, and this one does not wait for it.
TEST(KvStore, BlocksThatAreGoneCanBeReadLate) {
  const PagedScene source;
  const PagedScene reader;
  source.fill(0);
  source.fill(9);
  const KvLayout before = source.store->layout();
  const auto read_zeros = [&](int layer, BlockId block) {
    const SharedHeads heads{.layer = layer, .from = 0, .to = 0, .count = 2};
    reader.fill(5);
    reader.store->copy(before, heads, {.from = block, .to = 5});
    const auto copied = reader.block(reader.store->layers()[static_cast<std::size_t>(layer)], 5);
    return std::count(copied.begin(), copied.end(), std::byte{0}) == std::ssize(copied);
  };
  source.store->limit(1);
  source.store->shrink();
  EXPECT_FALSE(read_zeros(0, 0));
  EXPECT_TRUE(read_zeros(0, 9)) << "in a page that is gone";
  source.store->set_layer(2, 0, 0, {});  // dropped by a group
  source.store->trim(2);
  EXPECT_TRUE(read_zeros(2, 0));
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
  EXPECT_LT(scene.pool->free_pages(), 3) << "three arrays share the pages evenly";
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
  const auto fixed = KvStore::create({scene.spec, whole(scene.spec), 1, scene.form});
  ASSERT_TRUE(fixed.ok());
  EXPECT_EQ((*fixed)->grow(20).error().code, ErrorCode::kUnsupported);
}

TEST(KvStore, CopiesTheHeadsOfBlocksThatItHas) {
  const PagedScene scene;
  for (int id = 0; id < 10; ++id) {
    scene.fill(id);
  }
  const auto heads = scene.store->own_heads();
  ASSERT_EQ(heads.size(), 3U);
  for (const SharedHeads& some : heads) {
    scene.store->copy(scene.store->layout(), some, {.from = 9, .to = 3});
  }
  EXPECT_TRUE(scene.holds(3, 9));
  EXPECT_TRUE(scene.holds(2, 2));
  EXPECT_TRUE(scene.holds(4, 4));
  const SharedHeads second_of_first{.layer = 1, .from = 0, .to = 1, .count = 1};
  scene.store->copy(scene.store->layout(), second_of_first, {.from = 7, .to = 4});
  const auto bytes = scene.block(scene.store->layers()[1], 4);
  const auto half = static_cast<std::ptrdiff_t>(bytes.size() / 2);
  const auto all_of = [](auto from, auto to, std::byte content) {
    return std::all_of(from, to, [content](std::byte b) { return b == content; });
  };
  EXPECT_TRUE(all_of(bytes.begin(), bytes.begin() + half, PagedScene::content_of(4, 1)));
  EXPECT_TRUE(all_of(bytes.begin() + half, bytes.end(), PagedScene::content_of(7, 1)));
  EXPECT_TRUE(scene.holds(5, 5));
}

}  // namespace
}  // namespace protean
