#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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
  // Gives a device another mailbox, since a sender that has failed may still write to the one that
  // it has, whose addresses stay as long as the mailboxes do. No other may send to the device
  // meanwhile. If the system refuses memory, the device keeps its mailbox.
  Status replace(int device);
  int hidden() const { return limits_.hidden; }
  int slots() const { return limits_.steps_in_flight; }
  std::int64_t bytes() const { return limits_.devices * each_bytes(); }  // in use

 private:
  struct Mailbox {
    std::vector<Region> memory;          // the last one is in use
    std::atomic<float*> rows = nullptr;  // [slot][rows][hidden]
  };
  std::int64_t each_bytes() const {
    return std::int64_t{limits_.steps_in_flight} * limits_.rows * limits_.hidden *
           std::int64_t{sizeof(float)};
  }

  MailboxLimits limits_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
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
