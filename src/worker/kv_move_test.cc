#include "worker/kv_move.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <semaphore>
#include <span>
#include <thread>
#include <vector>

#include "device/cpu/pages.h"

namespace protean {
namespace {

// The arrays of two devices, each with the same blocks of a home of its own: all bytes of a
// device's blocks are its number.
struct TwoArrays {
  explicit TwoArrays(BlockId count = 4) {
    for (BlockId block = 0; block < count; ++block) {
      blocks.push_back(block);
    }
    ModelSpec spec;
    spec.layers = 1;
    spec.attention = {.heads = 2, .kv_heads = 2, .head_dim = 16};
    const Holding all = whole_model(spec.layers, 1, DeviceId{0});
    for (int device = 0; device < 2; ++device) {
      stores.push_back(
          *KvStore::create({spec, all, 1, {.block_tokens = 4, .blocks = count}}, *pool));
    }
    slot = 2 * stores[0]->layers()[0].slot_bytes();
    for (const BlockId block : blocks) {
      std::ranges::fill(bytes_of(0, block), std::byte{0});
      std::ranges::fill(bytes_of(1, block), std::byte{1});
    }
  }
  std::span<std::byte> bytes_of(std::size_t device, BlockId block) {
    return {stores[device]->array(0) + block * slot, static_cast<std::size_t>(slot)};
  }
  // Does the share of device 0, which may have failed. Returns how many bytes of a device are the
  // other's afterwards.
  std::int64_t changed(std::size_t device, const KvMove& move, bool failed) {
    const std::vector<std::vector<BlockId>> live = {blocks, blocks};
    cpu::Team team(1);
    KvShare share([&move] { return move; }, scene(live, failed));
    share.finish(team);
    EXPECT_FALSE(share.run_one()) << "all chunks are done";
    return foreign(device);
  }
  // Returns how many bytes of a device are the other's.
  std::int64_t foreign(std::size_t device) {
    std::int64_t count = 0;
    for (const BlockId block : blocks) {
      count += std::ranges::count(bytes_of(device, block), static_cast<std::byte>(1 - device));
    }
    return count;
  }

  KvMoveScene scene(std::span<const std::vector<BlockId>> live, bool failed) {
    return {.arrays = {stores[0]->array(0), stores[1]->array(0)},
            .live = live,
            .slot_bytes = slot,
            .device = 0,
            .has_failed = [failed] { return failed; }};
  }

  std::vector<BlockId> blocks;
  std::unique_ptr<cpu::PagePool> pool = *cpu::PagePool::create(4096, 64, {});
  std::vector<std::unique_ptr<KvStore>> stores;
  std::int64_t slot = 0;
};

TEST(KvMove, ADeviceThatHasFailedWritesToNoOther) {
  KvMove move;
  move.swaps.push_back({.partner = 1, .mine = 1, .its = 0, .mine_of = 0, .its_of = 1});
  TwoArrays arrays;
  EXPECT_EQ(arrays.changed(1, move, true), 0);
  EXPECT_EQ(arrays.changed(1, move, false), 2 * arrays.slot / 2)
      << "half of the slots, half of each";
}

TEST(KvMove, DevicesOfTwoGroupsShareTheHeadsThatBothHold) {
  Holding here = whole_model(3, 4, DeviceId{0});
  Holding source = whole_model(3, 4, DeviceId{1});
  here.layers[0].attention = {0, 2};
  source.layers[0].attention = {1, 1};
  here.layers[1].attention = {2, 2};
  source.layers[1].attention = {};
  source.layers[2].attention = {2, 2};
  const std::vector<SharedHeads> shared = shared_heads({source, 3}, {here, 3});
  ASSERT_EQ(shared.size(), 2U);
  EXPECT_EQ(shared[0].layer, 0);
  EXPECT_EQ(shared[0].from, 0);
  EXPECT_EQ(shared[0].to, 3);
  EXPECT_EQ(shared[0].count, 3);
  EXPECT_EQ(shared[1].layer, 2);
  EXPECT_EQ(shared[1].from, 0);
  EXPECT_EQ(shared[1].to, 6);
  EXPECT_EQ(shared[1].count, 6);
}

// The source has the second half of eight heads, as one of two shards. This device has two of eight
// shards.
TEST(KvMove, GroupsOfDifferentNumbersOfShardsShareHeads) {
  Holding here = whole_model(2, 8, DeviceId{0});
  Holding source = whole_model(2, 2, DeviceId{1});
  source.layers[0].attention = source.layers[1].attention = {1, 1};
  here.layers[0].attention = {3, 2};
  here.layers[1].attention = {5, 2};
  const std::vector<SharedHeads> shared = shared_heads({source, 4}, {here, 1});
  ASSERT_EQ(shared.size(), 2U);
  EXPECT_EQ(shared[0].from, 0);
  EXPECT_EQ(shared[0].to, 1);
  EXPECT_EQ(shared[0].count, 1) << "the first head lies elsewhere";
  EXPECT_EQ(shared[1].from, 1);
  EXPECT_EQ(shared[1].to, 0);
  EXPECT_EQ(shared[1].count, 2);
  const std::vector<SharedHeads> back = shared_heads({here, 1}, {source, 4});
  EXPECT_EQ(back[0].from, 1);
  EXPECT_EQ(back[0].to, 0);
  EXPECT_EQ(back[1].from, 0);
  EXPECT_EQ(back[1].to, 1);
}

// Two pipelines of two stages, of which the first ones hold the only layer.
TEST(KvMove, PipelinesJoinWithBlocksWhereTheyLie) {
  ModelSpec spec;
  spec.layers = 1;
  spec.attention = {.heads = 2, .kv_heads = 2, .head_dim = 16};
  Formation apart{.form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = 8}),
                  .devices = {0, 1, 2, 3},
                  .homes = {{0, 1}, {2, 3}}};
  apart.form.group.assign(4, whole_model(1, 1, DeviceId{0}));
  apart.form.group[1].layers[0] = apart.form.group[3].layers[0] = {};
  const KvPlaces own{.tables = {{3, 1, 2, 0}, {3, 1, 2, 0}}};
  apart.home_places = std::make_shared<const std::vector<KvPlaces>>(1, own);
  Formation one = apart;
  one.form.group[2].layers[0] = {};
  const KvMove keeper = kv_move(apart, one, 0, 0);
  ASSERT_EQ(keeper.fetches.size(), 1U);
  EXPECT_EQ(keeper.fetches[0].source, 2);
  EXPECT_EQ(keeper.fetches[0].from.place(1, 0), 3);
  EXPECT_EQ(keeper.places.place(0, 0), 3);
  EXPECT_EQ(keeper.places.place(1, 0), 4 + 3);
  const KvMove other = kv_move(one, apart, 0, 2);
  ASSERT_EQ(other.fetches.size(), 1U);
  EXPECT_EQ(other.fetches[0].source, 0);
  EXPECT_EQ(other.fetches[0].from.place(1, 0), 4 + 3);
  EXPECT_EQ(other.places.place(1, 0), 3);
  for (const int device : {1, 3}) {
    EXPECT_TRUE(kv_move(apart, one, 0, device).fetches.empty()) << "it has no part in the layer";
    EXPECT_TRUE(kv_move(one, apart, 0, device).fetches.empty());
  }
}

// A pipeline of two stages and a replica become one, in which the second stage has the only layer,
// which the first one held. It takes the blocks of its own home as well.
TEST(KvMove, AStageTakesALayerThatAnotherStageOfItsHomeHeld) {
  ModelSpec spec;
  spec.layers = 1;
  spec.attention = {.heads = 2, .kv_heads = 2, .head_dim = 16};
  Formation apart{.form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = 9}),
                  .devices = {0, 1, 2},
                  .homes = {{0, 1}, {2}},
                  .home_blocks = {5, 4}};
  apart.form.group.assign(3, whole_model(1, 1, DeviceId{0}));
  apart.form.group[1].layers[0] = {};
  Formation one = apart;
  std::swap(one.form.group[0].layers[0], one.form.group[1].layers[0]);
  one.form.group[2].layers[0] = {};
  const KvMove taken = kv_move(apart, one, 0, 1);
  ASSERT_EQ(taken.fetches.size(), 2U);
  for (const std::size_t home : {0U, 1U}) {
    EXPECT_EQ(taken.fetches[home].home, static_cast<int>(home));
    EXPECT_EQ(taken.fetches[home].source, home == 0 ? 0 : 2);
  }
  EXPECT_EQ(taken.others, 4);
  EXPECT_EQ(taken.places.place(0, 3), 3);
  EXPECT_EQ(taken.places.place(1, 3), 5 + 3);
  EXPECT_TRUE(kv_move(apart, one, 0, 0).fetches.empty());
  const auto back = [&](int device) { return kv_move(one, apart, 0, device); };
  EXPECT_TRUE(back(1).fetches.empty()) << "it gives the layer back";
  for (const int device : {0, 2}) {
    const KvMove move = back(device);
    const int home = device == 0 ? 0 : 1;
    ASSERT_EQ(move.fetches.size(), 1U);
    EXPECT_EQ(move.fetches[0].source, 1);
    EXPECT_EQ(move.fetches[0].home, home);
    EXPECT_EQ(move.fetches[0].from.place(home, 3), home == 0 ? 3 : 5 + 3);
    EXPECT_EQ(move.others, 0);
  }
}

// The other device may have given back the pages of its array.
TEST(KvMove, ADeviceThatHasFailedReadsFromNoOther) {
  KvMove move;
  move.fetches.push_back({.source = 1, .home = 1, .from = {}});
  TwoArrays arrays;
  EXPECT_EQ(arrays.changed(0, move, true), 0);
  EXPECT_EQ(arrays.changed(0, move, false), 4 * arrays.slot);
}

// A thread stops within a chunk, where it asks whether its device has failed.
TEST(KvMove, OtherThreadsCanWaitUntilChunksEnd) {
  KvMove move;
  move.swaps.push_back({.partner = 1, .mine = 1, .its = 0, .mine_of = 0, .its_of = 1});
  TwoArrays arrays;
  const std::vector<std::vector<BlockId>> live = {arrays.blocks, arrays.blocks};
  std::binary_semaphore entered(0);
  std::binary_semaphore goes_on(0);
  KvMoveScene scene = arrays.scene(live, false);
  scene.has_failed = [&] {
    entered.release();
    goes_on.acquire();
    return true;
  };
  KvShare share([&move] { return move; }, scene);
  EXPECT_TRUE(share.chunks_end_by(std::chrono::steady_clock::now()));
  std::thread hanging([&share] { (void)share.run_one(); });
  entered.acquire();
  EXPECT_FALSE(share.chunks_end_by(std::chrono::steady_clock::now()));
  goes_on.release();
  EXPECT_TRUE(share.chunks_end_by(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
  hanging.join();
}

// A piece that changes places twice would be back where it was.
TEST(KvMove, TwoThreadsDoEachChunkOnce) {
  KvMove move;
  move.swaps.push_back({.partner = 1, .mine = 1, .its = 0, .mine_of = 0, .its_of = 1});
  TwoArrays arrays(200);
  const std::vector<std::vector<BlockId>> live = {arrays.blocks, arrays.blocks};
  KvShare share([&move] { return move; }, arrays.scene(live, false));
  std::binary_semaphore begun(0);
  std::thread background([&] {  // does up to a third of them
    EXPECT_TRUE(share.run_one().has_value());
    begun.release();
    for (int chunk = 0; chunk < 3 && share.run_one(); ++chunk) {
    }
  });
  begun.acquire();
  cpu::Team team(1);
  share.finish(team);
  EXPECT_EQ(arrays.foreign(1), 100 * arrays.slot / 2);
  background.join();
  EXPECT_EQ(arrays.foreign(1), 100 * arrays.slot / 2);
}

}  // namespace
}  // namespace protean
