#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/cpu/mailboxes.h"
#include "device/cpu/shared_exchange.h"

namespace protean {

// What devices share that compute steps together, now or after their replicas are joined: what they
// show each other, and a mailbox for each. Outlives the ranks of its devices.
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
  cpu::Mailboxes& mailboxes() { return mailboxes_; }
  std::int64_t bytes() const { return mailboxes_.bytes(); }
  bool has_own_cpus() const { return limits_.spins; }

 private:
  explicit Fabric(const Limits& limits);

  const Limits limits_;
  cpu::ExchangeBoard board_;
  cpu::Mailboxes mailboxes_;
};

}  // namespace protean
