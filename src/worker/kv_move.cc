#include "worker/kv_move.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::int64_t kBlocksAtOnce = 8;  // of a chunk

const ShardRun& run_of(const Formation& formation, int device, int layer) {
  return formation.form.group[static_cast<std::size_t>(device)].of(layer, Component::kAttention);
}

KvPlaces places_of(const Formation& formation, int layer) {
  return formation.home_places == nullptr
             ? KvPlaces()
             : (*formation.home_places)[static_cast<std::size_t>(layer)];
}

// Returns where a home has its blocks in an array of its own, as places of one home.
KvPlaces places_of_home(const KvPlaces& by_home, int home) {
  const auto index = static_cast<std::size_t>(home);
  const bool moved = index < by_home.tables.size() && !by_home.tables[index].empty();
  return moved ? KvPlaces{{by_home.tables[index]}} : KvPlaces();
}

bool all_one(const std::vector<Copy>& by_home) {
  return std::all_of(by_home.begin(), by_home.end(),
                     [&](const Copy& copy) { return copy == by_home.front(); });
}

// Returns the home whose copy the device is in; -1 if there is none.
int home_of(const std::vector<Copy>& by_home, int device) {
  const auto found = std::find_if(by_home.begin(), by_home.end(), [&](const Copy& copy) {
    return std::find(copy.begin(), copy.end(), device) != copy.end();
  });
  return found == by_home.end() ? -1 : static_cast<int>(found - by_home.begin());
}

// Returns the home that the only copy's devices belong to, which has taken the blocks of all others
// behind its own; -1 if devices of several homes divide the copy.
int keeper_of(const Formation& formation, const Copy& copy) {
  const int home = formation.home_with(copy.front());
  const bool keeps = std::all_of(copy.begin(), copy.end(),
                                 [&](int device) { return formation.home_with(device) == home; });
  return keeps ? home : -1;
}

// Returns the device of a copy that holds this run.
int with_run(const Formation& formation, const Copy& copy, const ShardRun& run, int layer) {
  const auto found = std::find_if(copy.begin(), copy.end(), [&](int device) {
    return run_of(formation, device, layer) == run;
  });
  check(found != copy.end(), "copies divide a layer alike");
  return *found;
}

// The swaps between the devices that hold the same shards while there is a copy for each home.
// `dividing`: from there, else back to there.
std::vector<KvMove::Swap> swaps_of(const Formation& apart, const std::vector<Copy>& copies,
                                   int layer, int device, bool dividing) {
  std::vector<KvMove::Swap> swaps;
  const int own = home_of(copies, device);
  for (int home = 0; home < static_cast<int>(copies.size()); ++home) {
    const Copy& copy = copies[static_cast<std::size_t>(home)];
    if (home != own) {
      swaps.push_back({.partner = with_run(apart, copy, run_of(apart, device, layer), layer),
                       .mine = home,
                       .its = own,
                       .mine_of = dividing ? own : home,
                       .its_of = dividing ? home : own});
    }
  }
  return swaps;
}

}  // namespace

std::shared_ptr<const std::vector<KvPlaces>> places_as_one(const Formation& formation) {
  const HomeBlocks homes = formation.blocks();
  std::vector<KvPlaces> all;
  bool moved = false;
  for (int layer = 0; layer < static_cast<int>(formation.form.layer_precision.size()); ++layer) {
    const Copy copy = copies_by_home(formation, layer, Component::kAttention).front();
    const int keeper = keeper_of(formation, copy);
    KvPlaces places;
    if (keeper >= 0) {
      places = unified(composed(places_of(formation, layer), places_behind(keeper, homes), homes),
                       homes);
    }
    moved = moved || !places.tables.empty();
    all.push_back(std::move(places));
  }
  return moved ? std::make_shared<const std::vector<KvPlaces>>(std::move(all)) : nullptr;
}

std::shared_ptr<const std::vector<KvPlaces>> places_of_joined(
    const std::vector<const Formation*>& joined) {
  if (std::all_of(joined.begin(), joined.end(),
                  [](const Formation* one) { return one->home_places == nullptr; })) {
    return nullptr;
  }
  std::vector<KvPlaces> all(joined.front()->form.layer_precision.size());
  for (std::size_t layer = 0; layer < all.size(); ++layer) {
    for (const Formation* const one : joined) {
      KvPlaces own = places_of(*one, static_cast<int>(layer));
      all[layer].tables.push_back(own.tables.empty() ? std::vector<BlockId>()
                                                     : std::move(own.tables.front()));
    }
  }
  return std::make_shared<const std::vector<KvPlaces>>(std::move(all));
}

KvMove kv_move(const Formation& before, const Formation& after, int layer, int device) {
  const std::vector<Copy> from = copies_by_home(before, layer, Component::kAttention);
  const std::vector<Copy> to = copies_by_home(after, layer, Component::kAttention);
  const int homes = before.home_count();
  const HomeBlocks blocks = before.blocks();
  const int own_home = before.home_with(device);
  const std::int64_t others = blocks.total() - blocks.of(own_home);
  const KvPlaces own_places = places_of(before, layer);
  KvMove move;
  check(from != to, "a layer's attention moves");
  if (run_of(before, device, layer).empty() && run_of(after, device, layer).empty()) {
    move.others = all_one(to) ? others : 0;
    return move;  // another stage of the home has the layer
  }
  if (all_one(to)) {
    move.others = others;
    const int keeper = keeper_of(before, to.front());
    if (keeper < 0) {
      check(before.home_places == nullptr, "homes that have divided layers divide no shards");
      move.swaps = swaps_of(before, from, layer, device, true);
      move.places = places_by_shards(blocks);
      return move;
    }
    move.places = composed(own_places, places_behind(keeper, blocks), blocks);
    for (int home = 0; home < homes && home_of(to, device) >= 0; ++home) {
      // Also the keeper's blocks, if another stage of it had the layer.
      const Copy& source = from[static_cast<std::size_t>(home)];
      if (source != to.front()) {
        move.fetches.push_back(
            {.source = with_run(before, source, run_of(after, device, layer), layer),
             .home = home,
             .from = own_places});
      }
    }
    return move;
  }
  check(all_one(from), "a layer passes between one copy and one for each home");
  const int keeper = keeper_of(before, from.front());
  if (keeper < 0) {
    move.swaps = swaps_of(after, to, layer, device, false);
    return move;
  }
  const int own = home_of(to, device);
  if (own < 0) {
    return move;  // another stage of its home gets the layer back
  }
  move.places = for_homes(places_of_home(own_places, own_home), homes);
  if (home_of(from, device) < 0) {
    move.fetches.push_back(
        {.source = with_run(before, from.front(), run_of(after, device, layer), layer),
         .home = own,
         .from = composed(own_places, places_behind(keeper, blocks), blocks)});
  }
  return move;
}

std::vector<SharedHeads> shared_heads(const HeadsOfDevice& source, const HeadsOfDevice& here) {
  std::vector<SharedHeads> all;
  for (std::size_t layer = 0; layer < here.holding.layers.size(); ++layer) {
    const ShardRun& from = source.holding.layers[layer].attention;
    const ShardRun& to = here.holding.layers[layer].attention;
    const int first_from = from.first * source.of_shard;
    const int first_to = to.first * here.of_shard;
    const int first = std::max(first_from, first_to);
    const int end = std::min(from.end() * source.of_shard, to.end() * here.of_shard);
    if (first < end) {
      all.push_back({.layer = static_cast<int>(layer),
                     .from = first - first_from,
                     .to = first - first_to,
                     .count = end - first});
    }
  }
  return all;
}

namespace {

// Exchanges or copies the pieces of a slot of two homes, either of which may have a live block
// there.
struct PieceSwap {
  std::byte* mine = nullptr;
  std::byte* its = nullptr;
  bool mine_lives = false;
  bool its_lives = false;

  void run(std::int64_t bytes) const {
    if (mine_lives && its_lives) {
      std::swap_ranges(mine, mine + bytes, its);
    } else if (mine_lives) {
      std::memcpy(its, mine, static_cast<std::size_t>(bytes));
    } else {
      std::memcpy(mine, its, static_cast<std::size_t>(bytes));
    }
  }
};

std::int64_t chunks_of(const std::vector<BlockId>& blocks) {
  return ceil_div(std::ssize(blocks), kBlocksAtOnce);
}

}  // namespace

// Finds the slots that this device swaps: the home with the lower number does the even ones.
void KvShare::lay_out() {
  move_ = find_move_();
  for (const KvMove::Swap& swap : move_.swaps) {
    const std::vector<BlockId>& mine = scene_.live[static_cast<std::size_t>(swap.mine_of)];
    const std::vector<BlockId>& theirs = scene_.live[static_cast<std::size_t>(swap.its_of)];
    std::vector<BlockId> all;
    std::set_union(mine.begin(), mine.end(), theirs.begin(), theirs.end(), std::back_inserter(all));
    std::vector<BlockId>& slots = slots_.emplace_back();
    for (std::size_t i = swap.its < swap.mine ? 0 : 1; i < all.size(); i += 2) {
      slots.push_back(all[i]);
    }
    chunks_ += chunks_of(slots);
  }
  for (const KvMove::Fetch& fetch : move_.fetches) {
    chunks_ += chunks_of(scene_.live[static_cast<std::size_t>(fetch.home)]);
  }
}

std::optional<std::int64_t> KvShare::run_one() {
  std::call_once(once_, [this] { lay_out(); });
  const std::int64_t chunk = next_.fetch_add(1);
  if (chunk >= chunks_) {
    return std::nullopt;
  }
  // Increments before run() reads whether this device has failed, so that another device, which
  // knows of the failure, sees either the chunk or its end.
  ++in_chunk_;
  const std::int64_t bytes = run(chunk);
  {
    const std::lock_guard lock(ends_mutex_);
    --in_chunk_;
  }
  ends_.notify_all();
  done_.fetch_add(1, std::memory_order_release);
  done_.notify_all();
  return bytes;
}

bool KvShare::chunks_end_by(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(ends_mutex_);
  return ends_.wait_until(lock, until, [this] { return !in_chunk(); });
}

// Returns the bytes that the chunk moved.
std::int64_t KvShare::run(std::int64_t chunk) const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::int64_t own = chunks_of(slots_[i]);
    if (chunk < own) {
      return swap(move_.swaps[i], slots_[i], chunk);
    }
    chunk -= own;
  }
  for (const KvMove::Fetch& one : move_.fetches) {
    const std::int64_t own = chunks_of(scene_.live[static_cast<std::size_t>(one.home)]);
    if (chunk < own) {
      return fetch(one, chunk);
    }
    chunk -= own;
  }
  check(false, "a chunk is of a swap or of a fetch");
  return 0;
}

void KvShare::finish(cpu::Team& team) {
  std::call_once(once_, [this] { lay_out(); });
  team.run(std::max<std::int64_t>(0, chunks_ - next_),
           [this](std::int64_t, int) { (void)run_one(); });
  for (std::int64_t done = done_.load(std::memory_order_acquire); done < chunks_;
       done = done_.load(std::memory_order_acquire)) {
    done_.wait(done, std::memory_order_acquire);
  }
}

std::int64_t KvShare::swap(const KvMove::Swap& swap, const std::vector<BlockId>& slots,
                           std::int64_t chunk) const {
  std::int64_t moved = 0;
  const std::int64_t piece = scene_.slot_bytes / (std::ssize(move_.swaps) + 1);
  const std::vector<BlockId>& mine = scene_.live[static_cast<std::size_t>(swap.mine_of)];
  const std::vector<BlockId>& theirs = scene_.live[static_cast<std::size_t>(swap.its_of)];
  std::byte* const here = scene_.arrays[static_cast<std::size_t>(scene_.device)];
  std::byte* const there = scene_.arrays[static_cast<std::size_t>(swap.partner)];
  const std::int64_t end = std::min(std::ssize(slots), (chunk + 1) * kBlocksAtOnce);
  for (std::int64_t i = chunk * kBlocksAtOnce; i < end && !scene_.has_failed(); ++i) {
    const BlockId slot = slots[static_cast<std::size_t>(i)];
    PieceSwap{.mine = here + slot * scene_.slot_bytes + swap.mine * piece,
              .its = there + slot * scene_.slot_bytes + swap.its * piece,
              .mine_lives = std::binary_search(mine.begin(), mine.end(), slot),
              .its_lives = std::binary_search(theirs.begin(), theirs.end(), slot)}
        .run(piece);
    moved += piece;
  }
  return moved;
}

std::int64_t KvShare::fetch(const KvMove::Fetch& fetch, std::int64_t chunk) const {
  std::int64_t moved = 0;
  const std::vector<BlockId>& live = scene_.live[static_cast<std::size_t>(fetch.home)];
  std::byte* const here = scene_.arrays[static_cast<std::size_t>(scene_.device)];
  const std::byte* const there = scene_.arrays[static_cast<std::size_t>(fetch.source)];
  const std::int64_t slot = scene_.slot_bytes;
  const std::int64_t end = std::min(std::ssize(live), (chunk + 1) * kBlocksAtOnce);
  for (std::int64_t i = chunk * kBlocksAtOnce; i < end && !scene_.has_failed(); ++i) {
    const BlockId block = live[static_cast<std::size_t>(i)];
    std::memcpy(here + move_.places.place(fetch.home, block) * slot,
                there + fetch.from.place(fetch.home, block) * slot, static_cast<std::size_t>(slot));
    moved += slot;
  }
  return moved;
}

}  // namespace protean
