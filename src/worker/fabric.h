#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "device/cpu/memory.h"
#include "device/cpu/shared_exchange.h"

namespace protean {

// What devices share that compute steps together, now or after their replicas are joined: what they
// show each other, and a mailbox for each, in which it gets rows of the residual stream. Memory of
// mailboxes is touched on first use. Outlives the ranks of its devices.
class Fabric {
 public:
  struct Limits {
    int devices = 1;
    int rows = 0;             // of a step
    int hidden = 0;           // of a row
    int steps_in_flight = 1;  // slots of each mailbox
    bool spins = false;       // every thread has a CPU of its own
  };
  static Result<std::unique_ptr<Fabric>> create(const Limits& limits);

  int devices() const { return limits_.devices; }
  int rows() const { return limits_.rows; }
  cpu::ExchangeBoard& board() { return board_; }
  cpu::GroupProgress& progress() { return board_.progress(); }

  // The rows of a device's mailbox for a step, from `first_row` on: [rows][hidden].
  std::span<float> mailbox(int device, std::uint64_t step, std::int64_t first_row,
                           std::int64_t rows);
  int slots() const { return limits_.steps_in_flight; }
  std::int64_t bytes() const { return memory_.bytes(); }  // of all mailboxes
  bool has_own_cpus() const { return limits_.spins; }

 private:
  explicit Fabric(const Limits& limits);

  const Limits limits_;
  cpu::ExchangeBoard board_;
  cpu::Region memory_;  // [device][slot][rows][hidden]
};

}  // namespace protean
