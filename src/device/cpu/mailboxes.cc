#include "device/cpu/mailboxes.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean::cpu {

Result<Mailboxes> Mailboxes::map(const MailboxLimits& limits) {
  Result<Region> memory = Region::map(std::int64_t{limits.devices} * limits.steps_in_flight *
                                      limits.rows * limits.hidden * std::int64_t{sizeof(float)});
  if (!memory) {
    return memory.error();
  }
  Mailboxes mailboxes;
  mailboxes.limits_ = limits;
  mailboxes.memory_ = std::move(*memory);
  return mailboxes;
}

std::span<float> Mailboxes::rows_of(int device, std::uint64_t step, std::int64_t first_row,
                                    std::int64_t rows) {
  check(device < limits_.devices && first_row + rows <= limits_.rows, "rows are in a mailbox");
  const auto slots = static_cast<std::uint64_t>(limits_.steps_in_flight);
  const auto slot =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(device) * slots + step % slots);
  return {
      reinterpret_cast<float*>(memory_.data()) + (slot * limits_.rows + first_row) * limits_.hidden,
      static_cast<std::size_t>(rows * limits_.hidden)};
}

void SharedHandOver::await(int from, int stop) {
  progress_.wait(device_, from, exchange_.handed_over(stop - 1));
}

std::span<const float> SharedHandOver::arrived(int first_row, int rows) {
  return mailboxes_.rows_of(device_, exchange_.step(), first_row, rows);
}

void SharedHandOver::taken(int stop) {
  progress_.reach(device_, exchange_.taken(stop));
}

// The slot may hold rows of an earlier step, or of an earlier stop.
void SharedHandOver::send(int to, int taken_last, int first_row, std::span<const float> rows) {
  const std::uint64_t step = exchange_.step();
  const auto slots = static_cast<std::uint64_t>(mailboxes_.slots());
  if (taken_last >= 0) {
    progress_.wait(device_, to, exchange_.taken(taken_last));
  } else if (step > slots) {
    progress_.wait(device_, to, {step - slots, kStepEnd});
  }
  std::copy(
      rows.begin(), rows.end(),
      mailboxes_.rows_of(to, step, first_row, std::ssize(rows) / mailboxes_.hidden()).begin());
}

void SharedHandOver::sent(int stop) {
  progress_.reach(device_, exchange_.handed_over(stop));
}

}  // namespace protean::cpu
