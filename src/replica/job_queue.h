#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace protean {

// Jobs that one thread runs, one after the other: short ones first, and also while a long one waits
// for work that it has given to another thread.
class JobQueue {
 public:
  using Job = std::function<void()>;

  // Any thread may call.
  void give(Job job);
  void give_short(Job job);
  // Drops the jobs that have not begun.
  void close();
  bool closed() const { return closed_; }
  // Returns true while a short job waits or runs.
  bool hurries() const { return hurrying_ > 0; }

  // Runs jobs until the queue is closed.
  void run();
  // A long job calls it. Runs `work` on a thread of its own, and short jobs meanwhile on the
  // calling thread. With `lowest_priority`, the work and the threads that it starts have that
  // priority.
  void run_aside(const Job& work, bool lowest_priority);

 private:
  void run_short(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> long_;
  std::deque<Job> short_;
  std::atomic<int> hurrying_ = 0;
  std::atomic<bool> closed_ = false;
};

}  // namespace protean
