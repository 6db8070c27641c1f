#include "server/mailbox.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

Mailbox::Letter letter(int replica, int running) {
  OutputBatch batch{.replica = ReplicaId{replica}};
  batch.observation.running = running;
  return {nullptr, std::move(batch)};
}

TEST(Mailbox, TellsOnceThatTheLastRequestsOfAllReplicasHaveEnded) {
  Mailbox mailbox;
  EXPECT_TRUE(mailbox.put(letter(0, 0)));
  EXPECT_FALSE(mailbox.put(letter(0, 2)));
  EXPECT_FALSE(mailbox.put(letter(1, 1)));
  EXPECT_EQ(mailbox.quiet(), std::nullopt);
  EXPECT_FALSE(mailbox.put(letter(0, 0)));
  const Mailbox::Letters busy = mailbox.take();
  EXPECT_EQ(busy.all.size(), 4U);
  EXPECT_FALSE(busy.requests_ended) << "replica 1 has one";
  EXPECT_TRUE(mailbox.put(letter(1, 0)));
  EXPECT_EQ(mailbox.quiet(), 2U);
  EXPECT_TRUE(mailbox.take().requests_ended);
  EXPECT_TRUE(mailbox.put(letter(1, 0)));
  EXPECT_FALSE(mailbox.take().requests_ended);
}

}  // namespace
}  // namespace protean
