#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "device/cpu/team.h"
#include "worker/kv_places.h"
#include "worker/kv_store.h"
#include "worker/route.h"

namespace protean {

// What a device does with the KV of a layer whose attention the devices of a group hold otherwise
// from now on. Devices are indices into the group.
struct KvMove {
  // Slots of the copies' arrays are cut into as many pieces as there are copies. The piece `mine`
  // of each slot here and the piece `its` of the partner's slot change places (AMOEBA section 3.1).
  struct Swap {
    int partner = 0;
    int mine = 0;
    int its = 0;
    int mine_of = 0;  // the home whose block the piece here belongs to
    int its_of = 0;
  };
  // The blocks of a home come from another device's array (KunServe section 4.2).
  struct Copy {
    int source = 0;
    int home = 0;
    KvPlaces from;  // places in the source's array
  };

  std::vector<Swap> swaps;
  std::vector<Copy> copies;
  // The layer's array afterwards.
  int homes = 1;
  KvPlaces places;
};

// Returns what a device does when the layer's attention passes from one formation's holdings to the
// other's: from a copy for each home to one copy, or back, by shards or by layers.
KvMove kv_move(const Formation& before, const Formation& after, int layer, int device);

// Returns the heads of each layer that two devices of different groups hold.
std::vector<SharedHeads> shared_heads(const Holding& source, const Holding& here,
                                      int heads_of_shard);

// The sides of a KvMove.
struct KvMoveScene {
  int layer = 0;
  std::span<KvStore* const> stores;            // by device; no step uses the layer
  std::span<const std::vector<BlockId>> live;  // by home, in order
  std::int64_t slot_bytes = 0;                 // of a block here while each home has a copy
  int device = 0;                              // this one
  // Returns true once this device has failed: the others do without it and may use their slots.
  std::function<bool()> has_failed;
};

// Does this device's share: half of what it swaps with each partner, which does the other half. A
// device that has failed begins no further piece.
void move_kv(const KvMove& move, const KvMoveScene& scene, cpu::Team& team);

}  // namespace protean
