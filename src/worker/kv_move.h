#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
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
  struct Fetch {
    int source = 0;
    int home = 0;
    KvPlaces from;  // places in the source's array
  };

  std::vector<Swap> swaps;
  std::vector<Fetch> fetches;
  // The layer's array afterwards.
  std::int64_t others = 0;  // blocks of other homes than the device's own
  KvPlaces places;
};

// Returns what a device does when the layer's attention passes from one formation's holdings to the
// other's: from a copy for each home to one copy, or back, by shards or by layers.
KvMove kv_move(const Formation& before, const Formation& after, int layer, int device);

// A device of a group in which a shard has so many KV heads.
struct HeadsOfDevice {
  const Holding& holding;
  int of_shard = 0;
};

// Returns the heads of each layer that two devices of different groups hold, of which one may have
// more shards than the other.
std::vector<SharedHeads> shared_heads(const HeadsOfDevice& source, const HeadsOfDevice& here);

// The sides of a KvMove.
struct KvMoveScene {
  // By device: where the layer's array begins. If a device has failed and may still write, the
  // others move their arrays (KvStore::leave_addresses), and it writes where nothing is read.
  std::vector<std::byte*> arrays;
  std::span<const std::vector<BlockId>> live;  // by home, in order
  std::int64_t slot_bytes = 0;                 // of a block here while each home has a copy
  int device = 0;                              // this one
  // Returns true once this device has failed: the others do without it and may use their slots.
  std::function<bool()> has_failed;
};

// What one device does of a KvMove: half of each exchange with a partner, which does the other
// half, and its own fetches. It is cut into chunks, and each is done once, by the device's
// background thread while a step goes on with later layers, or by its own threads between two
// steps. A device that has failed begins no further piece.
class KvShare {
 public:
  // Takes what finds the move: not before it is needed, because that takes time. What the scene
  // refers to must outlive the share.
  KvShare(std::function<KvMove()> find_move, KvMoveScene scene)
      : find_move_(std::move(find_move)), scene_(std::move(scene)) {}

  // Does a chunk that no thread has taken, and returns the bytes that it moved; nothing if there is
  // no such chunk. Called by any thread, once no device uses the layer any more before the move.
  std::optional<std::int64_t> run_one();
  // Does all that is left, and returns once all chunks are done.
  void finish(cpu::Team& team);
  // Returns true while a thread is in a chunk, false if the share is finished. Once a device that
  // has failed is in none, it writes to no slot of others any more.
  bool in_chunk() const { return in_chunk_ > 0; }
  // Waits until no thread is in a chunk. Returns false if one still is by then.
  bool chunks_end_by(std::chrono::steady_clock::time_point until);
  const KvMove& move() const { return move_; }  // after finish()

 private:
  void lay_out();
  std::int64_t run(std::int64_t chunk) const;
  std::int64_t swap(const KvMove::Swap& swap, const std::vector<BlockId>& slots,
                    std::int64_t chunk) const;
  std::int64_t fetch(const KvMove::Fetch& fetch, std::int64_t chunk) const;

  const std::function<KvMove()> find_move_;
  const KvMoveScene scene_;
  std::once_flag once_;
  KvMove move_;
  std::vector<std::vector<BlockId>> slots_;  // of each swap, those that this device swaps
  std::int64_t chunks_ = 0;                  // of all swaps, then of all fetches
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::int64_t> done_{0};
  std::atomic<int> in_chunk_ = 0;  // number of threads
  std::mutex ends_mutex_;          // held while in_chunk_ becomes less
  std::condition_variable ends_;
};

}  // namespace protean
