#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "device/cpu/locality.h"
#include "device/cpu/seat.h"

namespace protean::cpu {

// One device's threads. They sleep when idle. run() is called by one thread at a time, the owner's,
// which works too; it returns when every task is done. Called inside a task, it runs its tasks on
// the thread that calls. Tasks do not throw, and what they compute must not depend on their thread.
// Its threads are where it is told; a pinned one has a thread for each of its CPUs.
class Team {
 public:
  explicit Team(int threads, Locality where = {});  // >= 1, the caller included
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const;

  // On the owner's thread, which is not among those that the team starts: its place, for as long as
  // it computes.
  Seat take_seat() const;

  // Calls task(i, thread) once for each i in [0, tasks), thread in [0, threads()).
  void run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protean::cpu
