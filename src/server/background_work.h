#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/bounded_queue.h"

namespace protean {

// One thread for what would hold up all clients if the io thread did it: cutting a book into
// tokens, compiling a schema. Jobs run in order. The thread starts with the first job, so that it
// inherits what the io thread set up.
class BackgroundWork {
 public:
  using Done = std::function<void()>;
  using Job = std::function<Done()>;

  // post: takes what a job returns to the io thread; callable until this is destroyed.
  explicit BackgroundWork(std::function<void(Done)> post);
  ~BackgroundWork();  // waits for the job that runs; those after it are dropped

  // From one thread. False: too many wait already.
  bool try_run(Job job);

 private:
  void run();

  const std::function<void(Done)> post_;
  BoundedQueue<Job> jobs_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace protean
