#include "worker/paced_thread.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <future>
#include <semaphore>
#include <string>
#include <thread>

namespace protean {
namespace {

// Uses this much processor time, however much other threads use.
void burn(std::chrono::nanoseconds time) {
  const auto used = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  for (const auto begin = used(); used() - begin < time;) {
  }
}

TEST(PacedThread, RunsTasksInOrderAndUrgentOnesBetweenPieces) {
  PacedThread thread(0.5);
  std::string order;  // used by the thread only, until it has stopped
  std::promise<void> begun;
  std::promise<void> go_on;
  thread.post([&] {
    begun.set_value();
    go_on.get_future().wait();
    order += "a";
    EXPECT_TRUE(thread.may_go_on());
    order += "b";
  });
  begun.get_future().wait();
  thread.post([&] { order += "c"; });
  thread.post_urgent([&] {
    order += "1";
    EXPECT_TRUE(thread.may_go_on()) << "urgent tasks do not interrupt each other";
    order += "2";
  });
  thread.post_urgent([&] { order += "3"; });
  std::promise<void> end;
  thread.post([&] { end.set_value(); });
  go_on.set_value();
  end.get_future().wait();
  thread.stop();
  EXPECT_EQ(order, "a123bc");
}

TEST(PacedThread, ATaskIsRefusedOnceTheThreadHasEnded) {
  PacedThread thread(0.5);
  bool ran = false;
  EXPECT_TRUE(thread.post([&] { ran = true; }));
  thread.stop();
  EXPECT_TRUE(ran);
  EXPECT_FALSE(thread.post([&] { ADD_FAILURE() << "the thread has ended"; }));
}

TEST(PacedThread, ATaskThatCanWaitHasTimeWhileNoOtherWaits) {
  PacedThread thread(0.5);
  std::promise<void> begun;
  std::promise<void> go_on;
  std::promise<bool> had_time;
  std::promise<bool> has_time;
  thread.post([&] {
    had_time.set_value(thread.has_time());
    begun.set_value();
    go_on.get_future().wait();
    has_time.set_value(thread.has_time());
  });
  begun.get_future().wait();
  thread.post([] {});
  go_on.set_value();
  EXPECT_TRUE(had_time.get_future().get());
  EXPECT_FALSE(has_time.get_future().get());
}

TEST(PacedThread, TakesNoMoreThanItsShareWhileStepsRun) {
  constexpr auto kWork = std::chrono::microseconds(6'000);
  PacedThread thread(0.02);
  thread.step_begins();
  std::promise<void> done;
  const auto begin = std::chrono::steady_clock::now();
  thread.post([&] {
    for (int piece = 0; piece < 20; ++piece) {
      burn(kWork / 20);
      EXPECT_TRUE(thread.may_go_on());
    }
    done.set_value();
  });
  done.get_future().wait();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 49 * kWork);
}

// A rest would take an hour.
TEST(PacedThread, RestsOnlyWhileStepsRun) {
  PacedThread thread(1e-6);
  const auto work = [&](std::promise<void>& done) {
    thread.post([&] {
      burn(std::chrono::milliseconds(4));
      EXPECT_TRUE(thread.may_go_on());
      done.set_value();
    });
  };
  std::promise<void> first;
  work(first);
  first.get_future().wait();
  std::promise<void> second;
  thread.step_begins();
  work(second);
  thread.step_ends();
  second.get_future().wait();
}

TEST(PacedThread, DoesNotRestWhileTheStepWaits) {
  PacedThread thread(1e-6);
  thread.step_begins();
  std::promise<void> done;
  thread.post([&] {
    burn(std::chrono::milliseconds(4));
    EXPECT_TRUE(thread.may_go_on());
    done.set_value();
  });
  thread.step_waits(true);
  done.get_future().wait();
  thread.step_waits(false);
  thread.step_ends();
}

// A thousandth of a core, so that it owes forty seconds.
TEST(PacedThread, OwesItsRestStillWhenTheStepHasWaited) {
  PacedThread thread(0.001);
  thread.step_begins();
  std::promise<void> burned;
  std::promise<void> waited;
  std::promise<void> goes_on;
  std::promise<void> rested;
  thread.post([&] {
    burn(std::chrono::milliseconds(40));
    burned.set_value();
    EXPECT_TRUE(thread.may_go_on());
    waited.set_value();
    goes_on.get_future().wait();
    EXPECT_TRUE(thread.may_go_on());
    rested.set_value();
  });
  burned.get_future().wait();
  for (const auto before = thread.pieces().value(); thread.pieces().value() < before + 2;) {
    std::this_thread::yield();  // until it rests
  }
  thread.step_waits(true);
  waited.get_future().wait();
  thread.step_waits(false);
  goes_on.set_value();
  auto end = rested.get_future();
  EXPECT_EQ(end.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  thread.step_waits(true);
  end.wait();
}

TEST(PacedThread, StopEndsRestsAndRunsTheRemainingTasks) {
  PacedThread thread(1e-6);
  thread.step_begins();
  std::promise<void> begun;
  bool went_on = true;
  bool last = false;
  thread.post([&] {
    burn(std::chrono::milliseconds(1));
    begun.set_value();
    went_on = thread.may_go_on();
  });
  thread.post([&] { last = true; });
  begun.get_future().wait();
  thread.stop();
  EXPECT_FALSE(went_on);
  EXPECT_TRUE(last);
}

TEST(PacedThread, PiecesGrowWhileATaskWorks) {
  PacedThread thread(1.0);
  std::binary_semaphore entered{0};
  std::binary_semaphore goes_on{0};
  thread.post([&] {
    entered.release();
    goes_on.acquire();
    (void)thread.may_go_on();
    entered.release();
    goes_on.acquire();
  });
  entered.acquire();
  const auto before = thread.pieces();
  ASSERT_TRUE(before);
  EXPECT_EQ(thread.pieces(), before) << "it hangs";
  goes_on.release();
  entered.acquire();
  EXPECT_GT(thread.pieces(), before);
  EXPECT_FALSE(thread.ends_by(std::chrono::steady_clock::now()));
  goes_on.release();
  while (thread.pieces()) {
    std::this_thread::yield();
  }
  thread.stop();
}

}  // namespace
}  // namespace protean
