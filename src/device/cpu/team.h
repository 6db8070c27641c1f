#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "device/cpu/locality.h"
#include "device/cpu/seat.h"

namespace protean::cpu {

// The threads of one device. They sleep when idle. One thread, the owner, calls run(), takes part
// in the work, and gets control back when all tasks are done. A call inside a task runs its tasks
// on the calling thread. Tasks must not throw, and their results must not depend on the thread.
class Team {
 public:
  // `threads` includes the owner's. If `where` is pinned, it must have as many CPUs as threads.
  explicit Team(int threads, Locality where = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const;

  // Places the calling thread, which must be the owner's, like the threads that the team starts,
  // until the seat is destroyed.
  Seat take_seat() const;

  // Calls task(i, thread) once for each i in [0, tasks), thread in [0, threads()).
  void run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protean::cpu
