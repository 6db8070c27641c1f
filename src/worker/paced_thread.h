#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace protean {

// The thread for what is done beside steps. While steps run it uses no more than a share of a core,
// by resting after each piece of work as long as that took, times what the share asks; a low
// priority would not do, since where every core has a step's thread it is all or nothing. Tasks run
// one at a time, urgent ones first, also between two pieces of one that is not.
class PacedThread {
 public:
  using Task = std::function<void()>;

  explicit PacedThread(double share);  // of a core, in (0, 1]; 1 is without rest
  ~PacedThread() { stop(); }
  PacedThread(const PacedThread&) = delete;
  PacedThread& operator=(const PacedThread&) = delete;

  // On any thread. The lock is held for the queue only.
  void post(Task task);
  void post_urgent(Task task);

  // Ends the rests and lets may_go_on() be false. Returns when all tasks have run; none may be
  // posted later.
  void stop();

  // On the thread that runs steps, around each.
  void step_begins();
  void step_ends();

  // In a task, between pieces of a millisecond or less. False: give the task up.
  bool may_go_on();
  // In a task that can as well be done later: false where another is to be done first, too.
  bool has_time();

 private:
  bool steps_run() const;
  void rest();
  void run_urgent();
  bool run_one();
  void run();

  const double share_;
  std::atomic<bool> in_step_{false};
  std::atomic<std::int64_t> last_step_ns_;  // its end
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::deque<Task> urgent_;
  bool in_urgent_ = false;      // touched by the thread only, as is what follows
  std::int64_t worked_ns_ = 0;  // processor time up to which rest was taken
  std::int64_t owed_ns_ = 0;    // of rest
  std::thread thread_;          // last, so that all it uses is there
};

}  // namespace protean
