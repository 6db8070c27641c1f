#include "worker/kv_move.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "device/cpu/pages.h"

namespace protean {
namespace {

// Two devices that change pieces of their slots, of which one may have failed.
TEST(KvMove, ADeviceThatHasFailedWritesToNoOther) {
  ModelSpec spec;
  spec.layers = 1;
  spec.attention = {.heads = 2, .kv_heads = 2, .head_dim = 16};
  const Holding all = whole_model(spec.layers, 1, DeviceId{0});
  const std::vector<BlockId> blocks = {0, 1, 2, 3};
  const std::vector<std::vector<BlockId>> live = {blocks, blocks};
  cpu::Team team(1);
  for (const bool failed : {false, true}) {
    const auto pool = *cpu::PagePool::create(4096, 64, {});
    std::vector<std::unique_ptr<KvStore>> stores;
    std::vector<KvStore*> by_device;
    for (int device = 0; device < 2; ++device) {
      stores.push_back(*KvStore::create({spec, all, 1, {.block_tokens = 4, .blocks = 4}}, *pool));
      by_device.push_back(stores.back().get());
    }
    const std::int64_t slot = 2 * stores[0]->layers()[0].slot_bytes();
    const auto bytes_of = [&](std::size_t device, BlockId block) {
      return std::span(stores[device]->address(0, block, slot), static_cast<std::size_t>(slot));
    };
    for (const BlockId block : blocks) {
      std::ranges::fill(bytes_of(0, block), std::byte{1});
      std::ranges::fill(bytes_of(1, block), std::byte{2});
    }
    KvMove move;
    move.swaps.push_back({.partner = 1, .mine = 1, .its = 0, .mine_of = 0, .its_of = 1});
    move_kv(move,
            {.layer = 0,
             .stores = by_device,
             .live = live,
             .slot_bytes = slot,
             .device = 0,
             .has_failed = [&] { return failed; }},
            team);
    std::int64_t written = 0;
    for (const BlockId block : blocks) {
      written += std::ranges::count(bytes_of(1, block), std::byte{1});
    }
    EXPECT_EQ(written, failed ? 0 : 2 * slot / 2) << "half of the slots, half of each";
  }
}

}  // namespace
}  // namespace protean
