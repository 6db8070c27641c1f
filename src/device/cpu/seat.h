#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace protean::cpu {

// CPUs that the calling thread may run on, ascending. Empty where the system does not say.
std::vector<int> allowed_cpus();

// While it lives, the thread that made it, and that destroys it, runs on these CPUs only, and
// memory that it touches first comes from these nodes: from the one as long as that has any, from
// several in turns. Empty: as before. Threads that it starts meanwhile inherit both. A system may
// refuse, as containers do: then the thread goes on as before.
class Seat {
 public:
  Seat(std::span<const int> cpus, std::span<const int> nodes);
  ~Seat();
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  const Status& taken() const { return taken_; }  // what was refused, if anything

 private:
  void take_cpus(std::span<const int> cpus);
  void take_nodes(std::span<const int> nodes);

  Status taken_;
  std::vector<int> cpus_before_;  // empty: not changed
  int policy_before_ = -1;        // likewise
  std::vector<unsigned long> nodes_before_;
};

// Memory of a memfd that has none yet comes from these nodes, whoever touches it: pieces of 2 MiB
// in turns where they are several. Advice: false where the system refuses.
bool place_memory(int file, std::int64_t bytes, std::span<const int> nodes);

}  // namespace protean::cpu
