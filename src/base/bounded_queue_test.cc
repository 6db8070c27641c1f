#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace protean {
namespace {

TEST(BoundedQueue, CapacityBoundsTryPushOnly) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  queue.push(4);
  EXPECT_EQ(queue.pop_all(), (std::vector<int>{1, 2, 4}));
}

TEST(BoundedQueue, CloseWakesAndDrains) {
  BoundedQueue<int> queue(2);
  std::thread closer([&] { queue.close(); });
  EXPECT_TRUE(queue.pop_all().empty());
  closer.join();
  EXPECT_FALSE(queue.try_push(1));
  queue.push(2);
  EXPECT_EQ(queue.pop_all(), std::vector<int>{2});
}

TEST(BoundedQueue, ManyProducersLoseNothing) {
  BoundedQueue<int> queue(8);
  constexpr int kEach = 2000;
  std::vector<std::thread> producers;
  for (int p = 0; p < 4; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kEach; ++i) {
        while (!queue.try_push(p * kEach + i)) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::vector<int> last(4, -1);
  for (int taken = 0; taken < 4 * kEach;) {
    for (const int item : queue.pop_all()) {
      ASSERT_GT(item % kEach, last[static_cast<std::size_t>(item / kEach)]);
      last[static_cast<std::size_t>(item / kEach)] = item % kEach;
      ++taken;
    }
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
}

TEST(BoundedQueue, WaitUntilTellsWhyItReturned) {
  BoundedQueue<int> queue(1);
  const auto now = std::chrono::steady_clock::now();
  EXPECT_FALSE(queue.wait_until(now));
  queue.push(1);
  EXPECT_TRUE(queue.wait_until(now));
  EXPECT_EQ(queue.pop_all().size(), 1U);
  std::thread late([&queue] { queue.push(2); });
  EXPECT_TRUE(queue.wait_until(now + std::chrono::hours(1)));
  late.join();
  EXPECT_EQ(queue.pop_all().size(), 1U);
  queue.close();
  EXPECT_TRUE(queue.wait_until(now + std::chrono::hours(1)));
}

}  // namespace
}  // namespace protean
