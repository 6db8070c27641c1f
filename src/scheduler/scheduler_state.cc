#include "scheduler/scheduler_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/units.h"

namespace protean {
namespace {

using Sequences = std::vector<std::unique_ptr<Sequence>>;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// Appends a home's sequences, whose blocks get the numbers of the one KV cache.
void append(Sequences& all, Sequences home, const std::function<BlockId(BlockId)>& number) {
  for (std::unique_ptr<Sequence>& sequence : home) {
    for (BlockId& block : sequence->blocks) {
      block = number(block);
    }
    all.push_back(std::move(sequence));
  }
}

bool earlier(const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
  return a->place < b->place;
}

// Takes the KV of a sequence that finds no room.
void preempt(Sequence& sequence) {
  sequence.blocks.clear();
  sequence.cached = 0;
  sequence.computed = sequence.planned = 0;
  ++sequence.usage.preemptions;
}

// Places sequences of all homes in one order of arrivals: those of one home keep theirs.
void number_arrivals(SchedulerState& state) {
  std::vector<Sequence*> all;
  for (Sequences* sequences : {&state.running, &state.waiting}) {
    for (const std::unique_ptr<Sequence>& sequence : *sequences) {
      all.push_back(sequence.get());
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Sequence* a, const Sequence* b) {
    return a->place.arrival < b->place.arrival;
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->place.arrival = i + 1;
  }
  std::sort(state.running.begin(), state.running.end(), earlier);
  std::sort(state.waiting.begin(), state.waiting.end(), earlier);
}

// Divides the sequences and blocks of a state among homes, and orders the copies that this takes.
class Divider {
 public:
  Divider(const SchedulerState& state, const Homes& homes)
      : state_(state),
        homes_(homes),
        needed_(at(count()), std::vector<bool>(at(homes.blocks.total()), false)),
        load_(at(count())) {}

  // Returns why the state cannot be divided now; nothing once homes and copies are chosen.
  std::optional<Error> divide(bool preempts) {
    if (std::optional<Error> too_large = find_too_large()) {
      return too_large;
    }
    if (!place_running(preempts)) {
      return make_error(ErrorCode::kExhausted,
                        "{} running requests do not fit {} KV caches of {} blocks together now",
                        state_.running.size(), count(), homes_.blocks.total());
    }
    place_waiting();
    choose_destinations();
    if (!order_moves()) {
      return make_error(ErrorCode::kExhausted, "no KV block is free to exchange two others");
    }
    return std::nullopt;
  }

  // Takes the state apart as divided.
  HomeStates take(SchedulerState& all) {
    HomeStates result{.homes = {}, .moves = std::move(waves_), .preempted = preempted_};
    for (int home = 0; home < count(); ++home) {
      SchedulerState& state = result.homes.emplace_back(
          SchedulerState{.last_step = all.last_step, .hit_share = all.hit_share});
      if (home == 0) {
        state.totals = all.totals;
      }
      take_cached(home, state);
    }
    for (std::size_t i = 0; i < all.running.size(); ++i) {
      const int home = home_of_running_[i];
      Sequence& sequence = *all.running[i];
      SchedulerState& state = result.homes[at(home < 0 ? home_of_preempted_.at(i) : home)];
      if (home < 0) {
        preempt(sequence);
        state.waiting.push_back(std::move(all.running[i]));
        continue;
      }
      for (BlockId& block : sequence.blocks) {
        block = id_in_home(*place_of(home, block));
      }
      state.running.push_back(std::move(all.running[i]));
    }
    for (std::size_t i = 0; i < all.waiting.size(); ++i) {
      result.homes[at(home_of_waiting_[i])].waiting.push_back(std::move(all.waiting[i]));
    }
    if (all.totals) {
      result.homes.front().totals->preemptions_total += preempted_;
    }
    for (SchedulerState& state : result.homes) {
      std::sort(state.waiting.begin(), state.waiting.end(), earlier);
    }
    return result;
  }

 private:
  struct Load {
    std::int64_t blocks = 0;  // distinct ones that running sequences use
    std::int64_t waiting = 0;
    int running = 0;
  };

  int count() const { return homes_.blocks.count(); }
  int home_of(BlockId block) const { return homes_.blocks.block(block).home; }
  BlockId id_in_home(BlockId block) const { return homes_.blocks.block(block).block; }
  std::int64_t blocks_for(std::int64_t tokens) const {
    return ceil_div(tokens, std::int64_t{homes_.block_tokens});
  }

  std::optional<Error> find_too_large() const {
    for (const Sequences* sequences : {&state_.running, &state_.waiting}) {
      for (const std::unique_ptr<Sequence>& sequence : *sequences) {
        // The last token is never fed back, so it needs no KV.
        const std::int64_t prompt = sequence->prompt_tokens;
        const std::int64_t needs =
            blocks_for(std::max(prompt, prompt + sequence->asks.max_tokens - 1));
        if (const std::int64_t least = homes_.blocks.least(); needs > least) {
          return make_error(
              ErrorCode::kUnavailable,
              "request {} needs {} KV blocks, and the smallest replica has {}: it ends first",
              sequence->asks.id.value, needs, least);
        }
      }
    }
    return std::nullopt;
  }

  std::int64_t new_blocks(int home, const Sequence& sequence) const {
    return std::count_if(sequence.blocks.begin(), sequence.blocks.end(),
                         [&](BlockId block) { return !needed_[at(home)][at(block)]; });
  }

  // Chooses homes for running sequences, those with most blocks first.
  bool place_running(bool preempts) {
    std::vector<std::size_t> order(state_.running.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return state_.running[a]->blocks.size() > state_.running[b]->blocks.size();
    });
    home_of_running_.assign(order.size(), -1);
    for (const std::size_t i : order) {
      const Sequence& sequence = *state_.running[i];
      const int home = best_home(sequence);
      if (home < 0 && !preempts) {
        return false;
      }
      home_of_running_[i] = home;
      if (home < 0) {
        ++preempted_;
        continue;
      }
      Load& load = load_[at(home)];
      load.blocks += new_blocks(home, sequence);
      ++load.running;
      for (const BlockId block : sequence.blocks) {
        needed_[at(home)][at(block)] = true;
      }
    }
    return true;
  }

  // Returns the home with room where the blocks that lie there and those left free are most; -1 if
  // none has room.
  int best_home(const Sequence& sequence) const {
    int best = -1;
    std::int64_t best_rank = 0;
    for (int home = 0; home < count(); ++home) {
      const Load& load = load_[at(home)];
      const std::int64_t left = homes_.blocks.of(home) - load.blocks - new_blocks(home, sequence);
      if (left < 0 || load.running >= homes_.max_num_seqs[at(home)]) {
        continue;
      }
      const std::int64_t there =
          std::count_if(sequence.blocks.begin(), sequence.blocks.end(),
                        [&](BlockId block) { return home_of(block) == home; });
      const std::int64_t rank = there + left;
      if (best < 0 || rank > best_rank) {
        best = home;
        best_rank = rank;
      }
    }
    return best;
  }

  // Assigns each sequence without blocks to the home with the fewest blocks in use or awaited.
  void place_waiting() {
    const auto place = [this](const Sequence& sequence) {
      const auto least = std::min_element(
          load_.begin(), load_.end(),
          [](const Load& a, const Load& b) { return a.blocks + a.waiting < b.blocks + b.waiting; });
      least->waiting += blocks_for(std::ssize(sequence.tokens));
      return static_cast<int>(least - load_.begin());
    };
    for (std::size_t i = 0; i < state_.running.size(); ++i) {
      if (home_of_running_[i] < 0) {
        home_of_preempted_.emplace(i, place(*state_.running[i]));
      }
    }
    for (const std::unique_ptr<Sequence>& sequence : state_.waiting) {
      home_of_waiting_.push_back(place(*sequence));
    }
  }

  // Chooses a block of its home for each needed block that lies elsewhere: an empty one, else one
  // that another home takes, else the cached one that was freed first.
  void choose_destinations() {
    const auto blocks = static_cast<BlockId>(homes_.blocks.total());
    overwritten_.assign(at(blocks), false);
    taken_.assign(at(blocks), false);
    // The order of eviction of a block that no sequence of its home needs.
    std::vector<int> rank(at(blocks), 0);
    for (const std::unique_ptr<Sequence>& sequence : state_.running) {
      for (const BlockId block : sequence->blocks) {
        rank[at(block)] = 1;
      }
    }
    for (std::size_t i = 0; i < state_.idle.size(); ++i) {
      rank[at(state_.idle[i])] = 2 + static_cast<int>(i);
    }
    for (int home = 0; home < count(); ++home) {
      std::vector<BlockId> free;
      for (BlockId own = 0; own < homes_.blocks.of(home); ++own) {
        const BlockId block = homes_.blocks.number(home, own);
        taken_[at(block)] = needed_[at(home)][at(block)];
        if (!taken_[at(block)]) {
          free.push_back(block);
        }
      }
      std::stable_sort(free.begin(), free.end(),
                       [&](BlockId a, BlockId b) { return rank[at(a)] < rank[at(b)]; });
      auto next = free.begin();
      for (BlockId block = 0; block < blocks; ++block) {
        if (needed_[at(home)][at(block)] && home_of(block) != home) {
          moved_.emplace(std::pair(home, block), *next);
          pending_.push_back({.from = block, .to = *next});
          taken_[at(*next)] = overwritten_[at(*next)] = true;
          ++next;
        }
      }
    }
  }

  // Orders the copies in waves. A cycle of blocks that change places is opened through a free
  // block.
  bool order_moves() {
    std::vector<int> reads(overwritten_.size(), 0);
    for (const BlockMove& move : pending_) {
      ++reads[at(move.from)];
    }
    while (!pending_.empty()) {
      const auto blocked =
          std::stable_partition(pending_.begin(), pending_.end(),
                                [&](const BlockMove& move) { return reads[at(move.to)] == 0; });
      std::vector<BlockMove>& wave = waves_.emplace_back(pending_.begin(), blocked);
      pending_.erase(pending_.begin(), blocked);
      for (const BlockMove& move : wave) {
        --reads[at(move.from)];
      }
      if (!wave.empty()) {
        continue;
      }
      BlockId free = 0;
      while (free < std::ssize(taken_) && (taken_[at(free)] || reads[at(free)] > 0)) {
        ++free;
      }
      if (free == std::ssize(taken_)) {
        return false;
      }
      const BlockId from = pending_.front().from;
      wave.push_back({.from = from, .to = free});
      overwritten_[at(free)] = true;
      std::swap(reads[at(from)], reads[at(free)]);
      for (BlockMove& move : pending_) {
        move.from = move.from == from ? free : move.from;
      }
    }
    return true;
  }

  // Returns where the content of a block lies in the end, for a home; nothing if not there.
  std::optional<BlockId> place_of(int home, BlockId block) const {
    const auto moved = moved_.find({home, block});
    if (moved != moved_.end()) {
      return moved->second;
    }
    const bool stays = home_of(block) == home && !overwritten_[at(block)];
    return stays ? std::optional(block) : std::nullopt;
  }

  void take_cached(int home, SchedulerState& state) const {
    std::vector<bool> kept(overwritten_.size(), false);
    for (const CachedBlock& cached : state_.cached) {
      const std::optional<BlockId> place = place_of(home, cached.block);
      if (!place || (cached.parent >= 0 && !kept[at(cached.parent)])) {
        continue;
      }
      kept[at(cached.block)] = true;
      CachedBlock& copy = state.cached.emplace_back(cached);
      copy.block = id_in_home(*place);
      copy.parent = cached.parent >= 0 ? id_in_home(*place_of(home, cached.parent)) : -1;
    }
    // What the home's sequences do not use is free; blocks that were in use until now come last.
    std::vector<bool> listed(overwritten_.size(), false);
    const auto list = [&](BlockId block) {
      if (kept[at(block)] && !listed[at(block)] && !needed_[at(home)][at(block)]) {
        listed[at(block)] = true;
        state.idle.push_back(id_in_home(*place_of(home, block)));
      }
    };
    std::for_each(state_.idle.begin(), state_.idle.end(), list);
    for (const CachedBlock& cached : state_.cached) {
      list(cached.block);
    }
  }

  const SchedulerState& state_;
  const Homes homes_;
  std::vector<std::vector<bool>> needed_;  // by home and block: a running sequence there uses it
  std::vector<Load> load_;                 // by home
  std::vector<int> home_of_running_;       // -1: preempted
  std::map<std::size_t, int> home_of_preempted_;
  std::vector<int> home_of_waiting_;
  std::vector<bool> taken_;        // blocks that hold needed content in the end
  std::vector<bool> overwritten_;  // blocks that copies write to
  std::map<std::pair<int, BlockId>, BlockId> moved_;
  std::vector<BlockMove> pending_;
  std::vector<std::vector<BlockMove>> waves_;
  int preempted_ = 0;
};

}  // namespace

SchedulerState join_homes(std::vector<SchedulerState> homes, const HomeBlocks& blocks) {
  SchedulerState all;
  const int count = blocks.count();
  std::size_t longest = 0;
  for (int home = 0; home < count; ++home) {
    SchedulerState& state = homes[at(home)];
    const auto number = [&](BlockId block) { return blocks.number(home, block); };
    append(all.running, std::move(state.running), number);
    append(all.waiting, std::move(state.waiting), number);
    for (CachedBlock& cached : state.cached) {
      cached.block = number(cached.block);
      cached.parent = cached.parent < 0 ? -1 : number(cached.parent);
      all.cached.push_back(std::move(cached));
    }
    for (BlockId& block : state.idle) {
      block = number(block);
    }
    longest = std::max(longest, state.idle.size());
    all.last_step = std::max(all.last_step, state.last_step);
    all.hit_share += state.hit_share / static_cast<double>(count);
  }
  for (std::size_t i = 0; i < longest; ++i) {  // no clock is common to them, so they take turns
    for (const SchedulerState& state : homes) {
      if (i < state.idle.size()) {
        all.idle.push_back(state.idle[i]);
      }
    }
  }
  all.totals = homes.front().totals;
  number_arrivals(all);
  return all;
}

Result<HomeStates> split_homes(SchedulerState& all, const Homes& homes, bool preempts) {
  Divider divider(all, homes);
  if (std::optional<Error> why = divider.divide(preempts)) {
    return *std::move(why);
  }
  return divider.take(all);
}

void move_state(SchedulerState& state, std::span<const BlockId> places, bool keeps_cached) {
  const auto place_of = [&](BlockId block) { return block < 0 ? -1 : places[at(block)]; };
  std::vector<bool> kept(places.size(), false);
  std::vector<CachedBlock> cached;
  for (CachedBlock& block : state.cached) {
    const bool has_parent = block.parent < 0 || kept[at(block.parent)];
    if (keeps_cached && has_parent && place_of(block.block) >= 0) {
      kept[at(block.block)] = true;
      block.block = place_of(block.block);
      block.parent = place_of(block.parent);
      cached.push_back(std::move(block));
    }
  }
  state.cached = std::move(cached);
  std::vector<BlockId> idle;
  for (const BlockId block : state.idle) {
    if (kept[at(block)]) {
      idle.push_back(place_of(block));
    }
  }
  state.idle = std::move(idle);
  Sequences running;
  for (std::unique_ptr<Sequence>& sequence : state.running) {
    const bool stays = std::all_of(sequence->blocks.begin(), sequence->blocks.end(),
                                   [&](BlockId block) { return place_of(block) >= 0; });
    if (!stays) {
      preempt(*sequence);
      state.waiting.push_back(std::move(sequence));
      if (state.totals) {
        ++state.totals->preemptions_total;
      }
      continue;
    }
    for (BlockId& block : sequence->blocks) {
      block = place_of(block);
    }
    if (!keeps_cached) {  // KV of two precisions is not reused
      sequence->cached = 0;
      sequence->cacheable = false;
    }
    running.push_back(std::move(sequence));
  }
  state.running = std::move(running);
  std::sort(state.waiting.begin(), state.waiting.end(), earlier);
  state.kv_in_place = true;
}

}  // namespace protean
