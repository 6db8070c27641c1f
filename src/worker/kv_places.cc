#include "worker/kv_places.h"

#include <cstddef>
#include <utility>

namespace protean {
namespace {

// Makes the table of each home from a function of home and block.
template <class PlaceOf>
KvPlaces make(int homes, std::int64_t blocks, const PlaceOf& place_of) {
  KvPlaces places;
  for (int home = 0; home < homes; ++home) {
    std::vector<BlockId>& table = places.tables.emplace_back();
    table.reserve(static_cast<std::size_t>(blocks));
    for (BlockId block = 0; block < blocks; ++block) {
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

KvPlaces places_by_shards(int homes, std::int64_t blocks) {
  return make(homes, blocks, [&](int home, BlockId block) { return block * homes + home; });
}

KvPlaces places_behind(int keeper, int homes, std::int64_t blocks) {
  return make(homes, blocks, [&](int home, BlockId block) {
    const int rank = home == keeper ? 0 : home < keeper ? home + 1 : home;
    return static_cast<BlockId>(rank * blocks) + block;
  });
}

KvPlaces unified(const KvPlaces& places, int homes, std::int64_t blocks) {
  return without_identity(make(1, homes * blocks, [&](int, BlockId block) {
    return places.place(block % homes, block / homes);
  }));
}

KvPlaces composed(const KvPlaces& own, const KvPlaces& places, int homes, std::int64_t blocks) {
  return own.tables.empty() ? places : make(homes, blocks, [&](int home, BlockId block) {
    return places.place(home, own.place(0, block));
  });
}

KvPlaces for_homes(const KvPlaces& own, int homes) {
  KvPlaces all;
  if (!own.tables.empty()) {
    all.tables.assign(static_cast<std::size_t>(homes), own.tables.front());
  }
  return all;
}

KvPlaces divided(const KvPlaces& places, int homes, std::int64_t blocks) {
  return make(homes, blocks,
              [&](int home, BlockId block) { return places.place(0, block * homes + home); });
}

}  // namespace protean
