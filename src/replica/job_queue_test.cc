#include "replica/job_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <new>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace protean {
namespace {

TEST(JobQueue, AShortJobRunsWhileALongOneWaitsForItsWork) {
  JobQueue jobs;
  std::string order;
  std::binary_semaphore began{0};
  std::binary_semaphore woke{0};
  jobs.give([&] {
    jobs.run_in_background([&] {
      began.release();
      woke.acquire();  // the work ends only after the short job
      order += "work ";
    });
    order += "long ";
  });
  jobs.give([&] {
    order += "next";
    jobs.close();
  });
  std::thread thread([&] { jobs.run(); });
  began.acquire();
  EXPECT_FALSE(jobs.hurries());
  jobs.give_short([&] {
    EXPECT_TRUE(jobs.hurries());
    order += "short ";
    woke.release();
  });
  thread.join();
  EXPECT_EQ(order, "short work long next");
  EXPECT_FALSE(jobs.hurries());
}

TEST(JobQueue, WorkThatThrowsFailsItsJobAlone) {
  JobQueue jobs;
  std::vector<Status> ended;
  const auto give = [&](const JobQueue::Job& work) {
    jobs.give([&jobs, &ended, work] {
      ended.push_back(attempt([&] {
        jobs.run_in_background(work);
        return Status();
      }));
    });
  };
  give([] { throw std::bad_alloc(); });
  give([] { throw std::runtime_error("no more threads"); });
  give([] {});
  jobs.give([&] { jobs.close(); });
  jobs.run();
  ASSERT_EQ(ended.size(), 3U);
  EXPECT_EQ(ended[0].error().code, ErrorCode::kExhausted);
  EXPECT_EQ(ended[0].error().message, "the system is out of memory");
  EXPECT_EQ(ended[1].error().message, "no more threads");
  EXPECT_TRUE(ended[2].ok());
}

TEST(JobQueue, WorkWaitsForItsTurn) {
  constexpr TimeNs kMinutesNs = 600 * kNsPerS;
  JobQueue jobs;
  std::atomic<bool> ready = false;
  std::counting_semaphore<> looked{0};
  const auto is_ready = [&] {
    looked.release();
    return ready.load();
  };
  std::array<bool, 4> turns{};
  std::binary_semaphore closing{0};
  jobs.give([&] {
    jobs.run_in_background([&] {
      turns[0] = jobs.await_turn(is_ready, kMinutesNs);
      turns[1] = jobs.await_turn([] { return false; }, 0);
      closing.release();
      turns[2] = jobs.await_turn([] { return false; }, kMinutesNs);
      turns[3] = jobs.await_turn([] { return true; }, kMinutesNs);
    });
  });
  std::thread thread([&] { jobs.run(); });
  looked.acquire();
  ready = true;
  jobs.look_again();
  closing.acquire();
  jobs.close();
  thread.join();
  EXPECT_EQ(turns, (std::array{true, true, false, false})) << "ready; the time is over; closed";
}

TEST(JobQueue, WorkWaitsForShortJobsFirst) {
  JobQueue jobs;
  std::binary_semaphore began{0};
  std::binary_semaphore hurries{0};
  std::binary_semaphore turn{0};
  bool overtaken = true;
  jobs.give([&] {
    jobs.run_in_background([&] {
      began.release();
      hurries.acquire();
      jobs.await_turn([] { return true; }, 0);
      turn.release();
      jobs.close();
    });
  });
  std::thread thread([&] { jobs.run(); });
  began.acquire();
  jobs.give_short([&] {
    hurries.release();
    overtaken = turn.try_acquire_for(std::chrono::milliseconds(50));
  });
  thread.join();
  EXPECT_FALSE(overtaken);
  EXPECT_TRUE(turn.try_acquire()) << "its turn comes after the short job";
}

TEST(JobQueue, ShortJobsRunFirstAndAClosedQueueDropsAll) {
  JobQueue jobs;
  std::string order;
  jobs.give([&] {
    order += "long";
    jobs.close();
  });
  jobs.give([&] { order += "dropped"; });
  jobs.give_short([&] { order += "first "; });
  jobs.give_short([&] { order += "second "; });
  jobs.run();
  EXPECT_EQ(order, "first second long");
  EXPECT_TRUE(jobs.closed());
}

TEST(JobQueue, AJobThatIsToBeNextGoesBeforeLongJobsThatHaveNotBegun) {
  JobQueue jobs;
  std::string order;
  jobs.give([&] {
    jobs.give([&] { order += "next "; }, "replacement", true);
    order += "first ";
  });
  jobs.give([&] {
    order += "last";
    jobs.close();
  });
  jobs.run();
  EXPECT_EQ(order, "first next last");
}

TEST(JobQueue, AJobIsTakenBackByItsNameAndOthersGoOn) {
  constexpr TimeNs kMinutesNs = 600 * kNsPerS;
  JobQueue jobs;
  std::string order;
  std::counting_semaphore<> waits{0};
  bool goes_on = true;
  bool taken_back = false;
  bool to_its_end = false;
  jobs.give(
      [&] {
        jobs.run_in_background([&] {
          goes_on = jobs.await_turn(
              [&] {
                waits.release();
                return false;
              },
              kMinutesNs);
        });
        taken_back = jobs.taken_back();
        to_its_end = jobs.await_turn([] { return true; }, 0, true);
      },
      "first");
  jobs.give([&] { order += "second "; }, "second");
  jobs.give(
      [&] {
        order += jobs.await_turn([] { return true; }, 0) && !jobs.taken_back() ? "third" : "none";
        jobs.close();
      },
      "third");
  std::thread thread([&] { jobs.run(); });
  waits.acquire();
  EXPECT_TRUE(jobs.take_back("second")) << "it has not begun";
  EXPECT_FALSE(jobs.take_back("second"));
  EXPECT_FALSE(jobs.take_back("first")) << "it runs";
  thread.join();
  EXPECT_FALSE(goes_on);
  EXPECT_TRUE(taken_back);
  EXPECT_TRUE(to_its_end);
  EXPECT_EQ(order, "third");
}

TEST(JobQueue, AClosedQueueTakesNoJobs) {
  JobQueue jobs;
  std::string order;
  jobs.give([&] {
    jobs.run_in_background([&] {
      jobs.close();
      jobs.give_short([&] { order += "dropped"; });
      order += "work ";
    });
    jobs.give([&] { order += "dropped"; });
    order += "ended";
  });
  jobs.run();
  EXPECT_EQ(order, "work ended");
  EXPECT_FALSE(jobs.hurries());
  EXPECT_EQ(jobs.short_jobs(), 0U);
}

}  // namespace
}  // namespace protean
