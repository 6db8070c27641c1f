#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "contract/home_blocks.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/sequence.h"

namespace protean {

// All sequences and cached blocks of a scheduler without steps in flight, as a value: schedulers
// merge and split by handing it over (Scheduler::release_all, absorb). Owns no block; block tables
// name blocks of the scheduler that gave it.
struct SchedulerState {
  std::vector<std::unique_ptr<Sequence>> running;  // in order of their places
  std::vector<std::unique_ptr<Sequence>> waiting;  // in order of their places, without blocks
  std::vector<CachedBlock> cached;  // blocks at the present precisions, parents first
  std::vector<BlockId> idle;  // cached blocks that no sequence uses, the longest free one first
  std::uint64_t last_step = 0;
  double hit_share = 0;
  // Counters that go on in the scheduler that absorbs the state; nothing: that one has its own.
  std::optional<Observation> totals;
  bool kv_in_place = false;  // before the first step of the scheduler that absorbs the state
};

// Replicas whose KV caches become one, or the reverse.
struct Homes {
  HomeBlocks blocks;
  int block_tokens = 16;
  std::vector<int> max_num_seqs;  // sequences in a step of each home
};

// Returns the state of one scheduler instead of several, in order of the homes. Sequences of equal
// priority and due time keep the order of their arrivals. The counters are those of the first.
SchedulerState join_homes(std::vector<SchedulerState> homes, const HomeBlocks& blocks);

struct HomeStates {
  std::vector<SchedulerState> homes;
  // Copies to make first, wave after wave, in blocks of the one KV cache. No copy of a wave writes
  // what another copy of the wave reads or writes.
  std::vector<std::vector<BlockMove>> moves;
  int preempted = 0;  // sequences that found no room in any home, and are computed again
};

// Divides a state among homes. A sequence goes to the home that has most of its blocks, as far as
// there is room; its other blocks are copied there. A block that sequences of several homes share
// is copied for each. Blocks that are only cached stay cached if all blocks before them lie in the
// same home. The first home gets the counters. Fails with kUnavailable, and leaves `all` as it was,
// if a request needs more blocks than the smallest home has; with kExhausted if the running
// sequences find no room, unless `preempts`.
Result<HomeStates> split_homes(SchedulerState& all, const Homes& homes, bool preempts);

// Renames the blocks of a state for the KV cache to which they were copied. `places` has the new id
// of each block, -1 if it was not copied. Sequences that lack a block are preempted. Cached blocks
// are dropped if they or those before them lack a copy, or all of them unless `keeps_cached`.
void move_state(SchedulerState& state, std::span<const BlockId> places, bool keeps_cached);

}  // namespace protean
