#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace protean::cpu {

// One device's threads. They sleep when idle. run() is called by one thread at a time, the owner's,
// which works too; it returns when every task is done. Called inside a task, it runs its tasks on
// the thread that calls. Tasks do not throw, and what they compute must not depend on their thread.
class Team {
 public:
  explicit Team(int threads);  // >= 1, the caller included
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const;

  // Calls task(i, thread) once for each i in [0, tasks), thread in [0, threads()).
  void run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protean::cpu
