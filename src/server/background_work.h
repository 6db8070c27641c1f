#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/bounded_queue.h"

namespace protean {

// One thread for jobs that would block all clients on the io thread, such as tokenising a book or
// compiling a schema. Jobs run in order. The thread starts with the first job and inherits the CPU
// affinity and signal mask of the io thread.
class BackgroundWork {
 public:
  using Done = std::function<void()>;
  using Job = std::function<Done()>;

  // `post` runs on the io thread what a job returns. It stays callable until this is destroyed.
  explicit BackgroundWork(std::function<void(Done)> post);
  // Waits for the running job and drops those after it.
  ~BackgroundWork();

  // Called from one thread. Returns false if too many jobs wait.
  bool try_run(Job job);

 private:
  void run();

  const std::function<void(Done)> post_;
  BoundedQueue<Job> jobs_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace protean
