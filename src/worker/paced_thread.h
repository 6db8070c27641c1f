#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <semaphore>
#include <thread>

namespace protean {

// A thread for background tasks. While steps run, it uses at most a share of a core: after each
// piece of work it rests in proportion to the processor time that the piece took. A low
// scheduling priority is not enough: if every core runs a thread of the step, the task gets a whole
// core or nothing. Tasks run one at a time, urgent ones first, also between two pieces of a task
// that is not urgent.
class PacedThread {
 public:
  using Task = std::function<void()>;

  explicit PacedThread(double share);  // of a core, in (0, 1]; 1: it never rests
  ~PacedThread() { stop(); }
  PacedThread(const PacedThread&) = delete;
  PacedThread& operator=(const PacedThread&) = delete;

  // Adds a task, on any thread. Returns false if the thread has ended: then the task will not run.
  // The lock is held for the queue only.
  bool post(Task task);
  void post_urgent(Task task);

  // Ends rests and makes may_go_on() return false.
  void begin_stop();
  // The same, and waits until all tasks have run. Returns false if they have not by then. Tasks
  // that are posted after begin_stop() may not run.
  [[nodiscard]] bool ends_by(std::chrono::steady_clock::time_point until);
  void stop();

  // Returns a number that grows with each piece of work; nothing while there is no task. Any thread
  // may call.
  std::optional<std::uint64_t> pieces() const;

  // Must be called around each step, on the thread that runs steps.
  void step_begins();
  void step_ends();
  // Tells that the step waits for another device, or goes on. While it waits, tasks do not rest,
  // and what they do costs no rest later.
  void step_waits(bool waits) { step_waits_ = waits; }

  // A task calls it between pieces of a millisecond or less, and ends if it returns false.
  bool may_go_on();
  // A task that can wait calls it in place of may_go_on(): it also returns false if another task is
  // queued.
  bool has_time();

 private:
  bool steps_run() const;
  void rest();
  void run_urgent();
  bool run_one();
  void run();

  const double share_;
  std::atomic<bool> in_step_{false};
  std::atomic<bool> step_waits_{false};
  std::atomic<std::int64_t> last_step_ns_;  // when the last step ended
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> pieces_{0};
  std::binary_semaphore thread_ends_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::deque<Task> urgent_;
  bool runs_ = false;           // a task; guarded by the mutex
  bool ended_ = false;          // no task runs any more; guarded by the mutex
  bool in_urgent_ = false;      // used by the thread only, as is what follows
  std::int64_t worked_ns_ = 0;  // processor time that rests account for
  std::int64_t owed_ns_ = 0;    // rest still to take
  std::thread thread_;          // last: it uses the members above
};

}  // namespace protean
