#include "base/background_queue.h"

#include <gtest/gtest.h>

#include <future>

namespace protean {
namespace {

TEST(BackgroundQueue, HandsOverInOrderAndFinishesAtTheEnd) {
  const auto seen = std::make_shared<std::vector<int>>();
  {
    BackgroundQueue<int> queue(1000, [seen](const std::vector<int>& items) {
      seen->insert(seen->end(), items.begin(), items.end());
    });
    for (int i = 0; i < 1000; ++i) {
      queue.put(i);
    }
  }
  ASSERT_EQ(seen->size(), 1000U);
  EXPECT_EQ(seen->back(), 999);
}

TEST(BackgroundQueue, DropsWhatAStuckReaderDoesNotTakeAndIsNotHeldUpByIt) {
  const auto free = std::make_shared<std::promise<void>>();
  const auto entered = std::make_shared<std::promise<void>>();
  {
    BackgroundQueue<int> queue(10, [wait = free->get_future().share(), entered](const auto&) {
      entered->set_value();
      wait.wait();
    });
    queue.put(0);
    entered->get_future().wait();
    for (int i = 0; i < 25; ++i) {
      queue.put(i);
    }
    EXPECT_EQ(queue.dropped(), 15U);
  }  // the thread is left behind
  *entered = std::promise<void>();
  free->set_value();
}

}  // namespace
}  // namespace protean
