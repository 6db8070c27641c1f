#include "worker/kv_places.h"

#include <cstddef>
#include <utility>

namespace protean {
namespace {

// Makes the table of each home from a function of home and block.
template <class PlaceOf>
KvPlaces make(const HomeBlocks& homes, const PlaceOf& place_of) {
  KvPlaces places;
  for (int home = 0; home < homes.count(); ++home) {
    std::vector<BlockId>& table = places.tables.emplace_back();
    table.reserve(static_cast<std::size_t>(homes.of(home)));
    for (BlockId block = 0; block < homes.of(home); ++block) {
      table.push_back(place_of(home, block));
    }
  }
  return places;
}

KvPlaces without_identity(KvPlaces places) {
  for (const std::vector<BlockId>& table : places.tables) {
    for (std::size_t block = 0; block < table.size(); ++block) {
      if (table[block] != static_cast<BlockId>(block)) {
        return places;
      }
    }
  }
  return {};
}

}  // namespace

KvPlaces places_by_shards(const HomeBlocks& homes) {
  return make(homes, [&](int home, BlockId block) { return homes.number(home, block); });
}

KvPlaces places_behind(int keeper, const HomeBlocks& homes) {
  std::vector<std::int64_t> begin(static_cast<std::size_t>(homes.count()), 0);
  std::int64_t next = homes.of(keeper);
  for (int home = 0; home < homes.count(); ++home) {
    if (home != keeper) {
      begin[static_cast<std::size_t>(home)] = next;
      next += homes.of(home);
    }
  }
  return make(homes, [&](int home, BlockId block) {
    return static_cast<BlockId>(begin[static_cast<std::size_t>(home)]) + block;
  });
}

KvPlaces unified(const KvPlaces& places, const HomeBlocks& homes) {
  return without_identity(make(HomeBlocks(1, homes.total()), [&](int, BlockId number) {
    const HomeBlocks::Block block = homes.block(number);
    return places.place(block.home, block.block);
  }));
}

KvPlaces composed(const KvPlaces& own, const KvPlaces& places, const HomeBlocks& homes) {
  return own.tables.empty() ? places : make(homes, [&](int home, BlockId block) {
    return places.place(home, own.place(home, block));
  });
}

KvPlaces for_homes(const KvPlaces& own, int homes) {
  KvPlaces all;
  if (!own.tables.empty()) {
    all.tables.assign(static_cast<std::size_t>(homes), own.tables.front());
  }
  return all;
}

KvPlaces divided(const KvPlaces& places, const HomeBlocks& homes) {
  return make(homes, [&](int home, BlockId block) {
    return places.place(0, homes.number(home, block));
  });
}

}  // namespace protean
