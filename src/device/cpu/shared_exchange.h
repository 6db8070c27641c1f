#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/cpu/exchange.h"
#include "device/cpu/progress.h"

namespace protean::cpu {

// A device that holds shards of a component.
struct Member {
  int device = 0;
  int first_shard = 0;
  int shards = 1;
  bool collects = true;  // reads the others' rows
};

// The devices of the copy of each component that a device is in, in order of shards; empty where it
// has all shards, or none.
struct GroupMembers {
  std::vector<Member> embedding;
  std::vector<std::vector<Member>> attention;  // [layer]
  std::vector<std::vector<Member>> mlp;        // [layer]
  std::vector<Member> logits;

  const std::vector<Member>& of(SharedRows which, int turn) const;
};

// What the devices of a group show each other in shared memory: addresses, with progress to say
// when they may be read. Outlives the exchanges of its devices.
class ExchangeBoard {
 public:
  ExchangeBoard(int devices, bool spins)
      : progress_(devices, spins), shown_(static_cast<std::size_t>(devices)) {}

  GroupProgress& progress() { return progress_; }

 private:
  friend class SharedExchange;
  static constexpr std::size_t kKinds = 5;  // number of SharedRows

  GroupProgress progress_;
  std::vector<std::array<std::span<const float>, kKinds>> shown_;  // [device]
};

// An Exchange by shared memory. Used by its device's thread only.
class SharedExchange final : public Exchange {
 public:
  SharedExchange(ExchangeBoard& board, int device, const GroupMembers& members, int layers);

  // Sets the devices of the group, which may be more than those that show each other rows.
  void set_group(std::vector<int> devices) { group_ = std::move(devices); }
  // Returns true if a device of the group has failed. Steps bring no results then, and devices may
  // leave them out.
  bool broken() const;

  // Must be called before a step's first use. Steps are numbered alike on all devices, from 1.
  void begin_step(std::uint64_t step) { step_ = step; }
  std::uint64_t step() const { return step_; }

  // The stops on a step's way: 0 for the embedding, 1 + 2l and 2 + 2l for the halves of layer l,
  // and the last for the LM head. The moments when a device has taken the rows that it needs at a
  // stop, and when it has handed over those that others need after it.
  Moment taken(int stop) const;
  Moment handed_over(int stop) const;
  // The moment when a device has attended a layer in a step, which uses its KV no more. It is told
  // by GroupProgress::pass().
  static Moment attended(std::uint64_t step, int layer);

  void reuse(SharedRows which) override;
  void show(SharedRows which, int turn, std::span<const float> mine) override;
  std::span<const ShownRows> collect(SharedRows which, int turn) override;
  void release(SharedRows which, int turn) override;

 private:
  Moment moment(SharedRows which, int turn, std::uint32_t phase) const;

  ExchangeBoard& board_;
  const int device_;
  const GroupMembers& members_;
  const int layers_;
  std::vector<int> group_;
  std::uint64_t step_ = 0;
  struct Last {
    const std::vector<Member>* members = nullptr;  // null: nothing is shown
    Moment released;                               // when no member reads it any more
  };
  std::array<Last, ExchangeBoard::kKinds> last_;
  std::vector<ShownRows> collected_;
};

}  // namespace protean::cpu
