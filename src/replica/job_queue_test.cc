#include "replica/job_queue.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <semaphore>
#include <string>
#include <thread>

namespace protean {
namespace {

int priority_of_thread() {
  return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)));
}

TEST(JobQueue, AShortJobRunsWhileALongOneWaitsForItsWork) {
  JobQueue jobs;
  std::string order;
  std::binary_semaphore began{0};
  std::binary_semaphore woke{0};
  jobs.give([&] {
    jobs.run_aside(
        [&] {
          began.release();
          woke.acquire();  // the work ends only after the short job
          order += "work ";
        },
        false);
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

TEST(JobQueue, WorkAtTheLowestPriorityLowersItsOwnThreadsAlone) {
  JobQueue jobs;
  const int before = priority_of_thread();
  int lowered = -1;
  int inherited = -1;
  jobs.run_aside(
      [&] {
        lowered = priority_of_thread();
        std::thread([&] { inherited = priority_of_thread(); }).join();
      },
      true);
  EXPECT_EQ(lowered, 19);
  EXPECT_EQ(inherited, 19);
  EXPECT_EQ(priority_of_thread(), before);
}

}  // namespace
}  // namespace protean
