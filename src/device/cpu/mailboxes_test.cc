#include "device/cpu/mailboxes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace protean::cpu {
namespace {

// The sender is two steps ahead, for which there are slots, and rows of each step stay apart.
TEST(SharedHandOver, BringsTheRowsOfEachStepToAnotherDevice) {
  constexpr std::uint64_t kAhead = 2;
  ExchangeBoard board(2, false);
  auto mailboxes =
      Mailboxes::map({.devices = 2, .rows = 4, .hidden = 3, .steps_in_flight = kAhead});
  ASSERT_TRUE(mailboxes.ok());
  const GroupMembers members{};
  SharedExchange sends(board, 0, members, 1);
  SharedExchange takes(board, 1, members, 1);
  SharedHandOver sender(*mailboxes, board.progress(), sends, 0);
  SharedHandOver receiver(*mailboxes, board.progress(), takes, 1);
  const auto rows_of = [](std::uint64_t step) {
    std::array<float, 6> rows{};
    rows.fill(static_cast<float>(step));
    return rows;
  };
  for (std::uint64_t step = 1; step <= 7; ++step) {
    sends.begin_step(step);
    sender.send(1, -1, 1, rows_of(step));
    sender.sent(0);
    if (step < kAhead) {
      continue;
    }
    const std::uint64_t taken = step - kAhead + 1;
    takes.begin_step(taken);
    receiver.await(0, 1);
    EXPECT_TRUE(std::ranges::equal(receiver.arrived(1, 2), rows_of(taken))) << taken;
    receiver.taken(1);
    board.progress().reach(1, {taken, kStepEnd});
  }
}

// A sender that has failed still holds the addresses of the mailbox.
TEST(Mailboxes, LateRowsReachNoMailboxThatReplacedTheirs) {
  auto mailboxes = Mailboxes::map({.devices = 2, .rows = 4, .hidden = 3, .steps_in_flight = 2});
  ASSERT_TRUE(mailboxes.ok());
  const auto all_of = [&](int device) { return mailboxes->rows_of(device, 1, 0, 4); };
  const std::span<float> former = all_of(1);
  const std::span<float> others = all_of(0);
  ASSERT_TRUE(mailboxes->replace(1).ok());
  std::ranges::fill(former, 7.0F);
  EXPECT_NE(all_of(1).data(), former.data());
  EXPECT_EQ(std::ranges::count(all_of(1), 0.0F), 12);
  EXPECT_EQ(all_of(0).data(), others.data());
}

}  // namespace
}  // namespace protean::cpu
