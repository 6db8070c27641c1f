#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "device/cpu/memory.h"
#include "device/cpu/shared_exchange.h"

namespace protean {

// What the devices of a group share while they compute steps together: who holds which shards, what
// they show each other, and a mailbox for each device whose stage follows another, in which it gets
// the rows of the residual stream. Outlives the ranks of its devices.
class Group {
 public:
  struct Limits {
    int rows = 0;             // of a step
    int steps_in_flight = 1;  // slots of each mailbox
    bool spins = false;       // every thread has a CPU of its own
  };
  // Refuses forms in which a layer has several copies or its halves lie on different devices, and
  // those whose embeddings are not where the first and the last layers are.
  static Result<std::unique_ptr<Group>> create(const Form& form, const ModelSpec& spec,
                                               const Limits& limits);

  std::span<const Stage> stages() const { return stages_; }
  int stage_of(int device) const { return place_[static_cast<std::size_t>(device)].stage; }
  bool last(int device) const { return stage_of(device) + 1 == std::ssize(stages_); }
  // The device that draws tokens and reports steps.
  int drawer() const { return stages_.back().devices.front(); }

  cpu::ExchangeBoard& board() { return board_; }
  const cpu::GroupMembers& members() const { return members_; }

  // The device of the next or the previous stage to which or from which a device hands over rows.
  int next(int device) const { return peer(device, 1); }
  int previous(int device) const { return peer(device, -1); }
  // The slot of a device's mailbox for a step: [rows][hidden].
  std::span<float> mailbox(int device, std::uint64_t step);
  int slots() const { return limits_.steps_in_flight; }
  std::int64_t bytes() const { return memory_.bytes(); }  // of all mailboxes

 private:
  struct Place {
    int stage = 0;
    int rank = 0;  // within the stage
  };
  Group(const Form& form, const ModelSpec& spec, const Limits& limits);
  int peer(int device, int apart) const;

  const Limits limits_;
  const std::int64_t slot_floats_;
  std::vector<Stage> stages_;
  std::vector<Place> place_;  // [device]
  cpu::ExchangeBoard board_;
  cpu::GroupMembers members_;
  cpu::Region memory_;  // [device][slot][rows][hidden]; empty with one stage
};

}  // namespace protean
