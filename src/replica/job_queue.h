#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "base/result.h"
#include "base/units.h"

namespace protean {

// Runs work that may need more memory than there is. Returns its status, or an error that names the
// exception if it throws: an exception that leaves a thread ends the process.
Status attempt(const std::function<Status()>& work);

// Jobs that one thread runs, one after the other: short ones first, and also while a long one waits
// for work that it has given to another thread. Jobs do not throw.
class JobQueue {
 public:
  using Job = std::function<void()>;

  // Any thread may call. A closed queue drops the job. A long job is taken back by its name. One
  // that is to be `next` goes before the long jobs that have not begun.
  void give(Job job, std::string name = {}, bool next = false);
  void give_short(Job job);
  // Takes back the long jobs of this name: drops those that have not begun, and has await_turn()
  // return false in one that runs. Returns true if it dropped one. Any thread may call.
  bool take_back(const std::string& name);
  // Returns true if the long job that runs was taken back.
  bool taken_back() const { return taken_back_; }
  // Drops the jobs that have not begun.
  void close();
  bool closed() const { return closed_; }
  // Returns true while a short job waits or runs.
  bool hurries() const { return hurrying_ > 0; }
  // Returns the number of all short jobs so far.
  std::uint64_t short_jobs() const { return short_jobs_; }

  // The work of a long job calls it. Waits while a short job waits or runs, and then until `ready`,
  // but not for longer than `longest_ns` in all. Returns false once the queue is closed or, unless
  // the work that has begun is done to its end, the job was taken back.
  bool await_turn(const std::function<bool()>& ready, TimeNs longest_ns, bool to_its_end = false);
  // What `ready` says may have changed. Any thread may call.
  void look_again();

  // Runs jobs until the queue is closed.
  void run();
  // A long job calls it. Runs `work` on a thread of its own, and meanwhile short jobs on the
  // calling thread. Throws what `work` throws.
  void run_in_background(const Job& work);

 private:
  struct LongJob {
    std::string name;
    Job work;
  };

  void run_short(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LongJob> long_;
  std::deque<Job> short_;
  std::atomic<int> hurrying_ = 0;
  std::atomic<std::uint64_t> short_jobs_ = 0;
  std::atomic<bool> closed_ = false;
  std::string running_;  // the name of the long job that runs; empty: none, or it has no name
  std::atomic<bool> taken_back_ = false;
};

}  // namespace protean
