#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "contract/home_blocks.h"

namespace protean {

// Where a layer's array on one device has each home's blocks: a block's place is its index in the
// array. Each home numbers its blocks from 0. Blocks behind a table's end lie at the place of their
// own number, and so do all blocks without a table.
struct KvPlaces {
  std::vector<std::vector<BlockId>> tables;  // by home

  BlockId place(int home, BlockId block) const {
    if (static_cast<std::size_t>(home) >= tables.size()) {
      return block;
    }
    const std::vector<BlockId>& table = tables[static_cast<std::size_t>(home)];
    return static_cast<std::size_t>(block) < table.size() ? table[static_cast<std::size_t>(block)]
                                                          : block;
  }
  friend bool operator==(const KvPlaces&, const KvPlaces&) = default;
};

// Returns the places after the copies of equal homes have divided a layer by shards: block a of home
// h of g is at a * g + h, where slot a was cut into as many pieces (AMOEBA section 3.1).
KvPlaces places_by_shards(const HomeBlocks& homes);

// Returns the places after one home's copy has taken the blocks of all others behind its own
// (KunServe section 4.2).
KvPlaces places_behind(int keeper, const HomeBlocks& homes);

// Returns the places of one home with all blocks (HomeBlocks). A table that changes nothing is left
// out.
KvPlaces unified(const KvPlaces& places, const HomeBlocks& homes);

// Returns places in which each home's blocks have the part that `places` gives it, and lie within
// it as they lay in an array of the home's own, where `own` says.
KvPlaces composed(const KvPlaces& own, const KvPlaces& places, const HomeBlocks& homes);

// Returns the places of several homes whose blocks lie alike, each in an array of its own.
KvPlaces for_homes(const KvPlaces& own, int homes);

// The reverse of unified().
KvPlaces divided(const KvPlaces& places, const HomeBlocks& homes);

}  // namespace protean
