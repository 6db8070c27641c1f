#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/cpu/hand_over.h"
#include "device/cpu/memory.h"
#include "device/cpu/shared_exchange.h"

namespace protean::cpu {

struct MailboxLimits {
  int devices = 1;
  int rows = 0;             // of a step
  int hidden = 0;           // of a row
  int steps_in_flight = 1;  // slots of each mailbox
};

// A mailbox for each device of a group, in which it gets rows of the residual stream. Memory is
// touched on first use.
class Mailboxes {
 public:
  static Result<Mailboxes> map(const MailboxLimits& limits);

  Mailboxes() = default;  // no mailbox

  // The rows of a device's mailbox for a step, from `first_row` on: [rows][hidden].
  std::span<float> rows_of(int device, std::uint64_t step, std::int64_t first_row,
                           std::int64_t rows);
  int hidden() const { return limits_.hidden; }
  int slots() const { return limits_.steps_in_flight; }
  std::int64_t bytes() const { return memory_.bytes(); }  // of all mailboxes

 private:
  MailboxLimits limits_;
  Region memory_;  // [device][slot][rows][hidden]
};

// A HandOver by shared memory. Used by its device's thread only. Steps and the moments at which
// they are at a stop are those of the device's exchange.
class SharedHandOver final : public HandOver {
 public:
  SharedHandOver(Mailboxes& mailboxes, GroupProgress& progress, const SharedExchange& exchange,
                 int device)
      : mailboxes_(mailboxes), progress_(progress), exchange_(exchange), device_(device) {}

  void await(int from, int stop) override;
  std::span<const float> arrived(int first_row, int rows) override;
  void taken(int stop) override;
  void send(int to, int taken_last, int first_row, std::span<const float> rows) override;
  void sent(int stop) override;

 private:
  Mailboxes& mailboxes_;
  GroupProgress& progress_;
  const SharedExchange& exchange_;
  const int device_;
};

}  // namespace protean::cpu
