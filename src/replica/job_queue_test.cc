#include "replica/job_queue.h"

#include <gtest/gtest.h>
#include <semaphore>
#include <string>
#include <thread>

namespace protean {
namespace {

TEST(JobQueue, AShortJobRunsWhileALongOneWaitsForItsWork) {
  JobQueue jobs;
  std::string order;
  std::binary_semaphore began{0};
  std::binary_semaphore woke{0};
  jobs.give([&] {
    jobs.run_aside([&] {
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

TEST(JobQueue, AClosedQueueTakesNoJobs) {
  JobQueue jobs;
  std::string order;
  jobs.give([&] {
    jobs.run_aside([&] {
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
