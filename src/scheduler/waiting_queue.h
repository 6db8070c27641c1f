#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "scheduler/sequence.h"

namespace protean {

// Waiting sequences that a step may pass over because they wait for others' prompts. Bounds the
// time in which a step is planned.
inline constexpr int kPassedOver = 64;

// The sequences that wait for admission, in the order of their places. Owns none of them.
class WaitingQueue {
 public:
  using Places = std::map<QueuePlace, Sequence*>;

  // Adds a sequence that needs so many KV blocks.
  void add(Sequence& sequence, TimeNs now_ns, std::int64_t blocks) {
    sequence.waiting_since_ns = now_ns;
    sequence.waiting_blocks = blocks;
    places_.emplace(sequence.place, &sequence);
    since_.emplace(now_ns, sequence.place.arrival);
    blocks_ += blocks;
  }
  void remove(const Sequence& sequence) {
    places_.erase(sequence.place);
    since_.erase({sequence.waiting_since_ns, sequence.place.arrival});
    blocks_ -= sequence.waiting_blocks;
  }

  const Places& places() const { return places_; }
  bool empty() const { return places_.empty(); }
  std::size_t size() const { return places_.size(); }
  std::int64_t blocks() const { return blocks_; }  // KV blocks that all of them need
  // Since when the sequence that waits longest waits; -1: none waits.
  TimeNs since_ns() const { return since_.empty() ? -1 : since_.begin()->first; }

 private:
  Places places_;
  std::set<std::pair<TimeNs, std::uint64_t>>
      since_;  // since when a sequence waits, and its arrival
  std::int64_t blocks_ = 0;
};

}  // namespace protean
