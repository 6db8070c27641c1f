#include "device/cpu/mailboxes.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean::cpu {

Result<Mailboxes> Mailboxes::map(const MailboxLimits& limits) {
  Mailboxes mailboxes;
  mailboxes.limits_ = limits;
  for (int device = 0; device < limits.devices; ++device) {
    mailboxes.mailboxes_.push_back(std::make_unique<Mailbox>());
    if (const Status mapped = mailboxes.replace(device); !mapped) {
      return mapped.error();
    }
  }
  return mailboxes;
}

Status Mailboxes::replace(int device) {
  Result<Region> memory = Region::map(each_bytes());
  if (!memory) {
    return memory.error();
  }
  Mailbox& mailbox = *mailboxes_[static_cast<std::size_t>(device)];
  mailbox.rows = reinterpret_cast<float*>(memory->data());
  if (!mailbox.memory.empty()) {  // a late write gets a page of its own
    const Region& former = mailbox.memory.back();
    (void)madvise(former.data(), static_cast<std::size_t>(former.bytes()), MADV_DONTNEED);
  }
  mailbox.memory.push_back(std::move(*memory));
  return {};
}

std::span<float> Mailboxes::rows_of(int device, std::uint64_t step, std::int64_t first_row,
                                    std::int64_t rows) {
  check(device < limits_.devices && first_row + rows <= limits_.rows, "rows are in a mailbox");
  const auto slot =
      static_cast<std::int64_t>(step % static_cast<std::uint64_t>(limits_.steps_in_flight));
  return {mailboxes_[static_cast<std::size_t>(device)]->rows +
              (slot * limits_.rows + first_row) * limits_.hidden,
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

// The slot may hold rows of an earlier step, or of an earlier stop. It is looked up before the
// wait, which never ends if this device has failed, since the receiver then takes another mailbox.
void SharedHandOver::send(int to, int taken_last, int first_row, std::span<const float> rows) {
  const std::uint64_t step = exchange_.step();
  const auto slots = static_cast<std::uint64_t>(mailboxes_.slots());
  const std::span<float> there =
      mailboxes_.rows_of(to, step, first_row, std::ssize(rows) / mailboxes_.hidden());
  progress_.wait(device_, to,
                 taken_last >= 0 ? exchange_.taken(taken_last)
                 : step > slots  ? Moment{step - slots, kStepEnd}
                                 : Moment{});
  std::copy(rows.begin(), rows.end(), there.begin());
}

void SharedHandOver::sent(int stop) {
  progress_.reach(device_, exchange_.handed_over(stop));
}

}  // namespace protean::cpu
