#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace protean::cpu {

// Returns the CPUs that the calling thread may run on, ascending; none if the system does not say.
std::vector<int> allowed_cpus();

// Restricts the calling thread to CPUs and NUMA nodes until the seat is destroyed, by the same
// thread. Memory that the thread touches first comes from the nodes: from a single node while it
// has memory left, from several nodes in turns. An empty list changes nothing. Threads started
// meanwhile inherit both. If the system refuses, as some containers do, nothing changes and taken()
// has the error.
class Seat {
 public:
  Seat(std::span<const int> cpus, std::span<const int> nodes);
  ~Seat();
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  const Status& taken() const { return taken_; }

 private:
  void take_cpus(std::span<const int> cpus);
  void take_nodes(std::span<const int> nodes);

  Status taken_;
  std::vector<int> cpus_before_;  // empty if not changed
  int policy_before_ = -1;        // -1 if not changed
  std::vector<unsigned long> nodes_before_;
};

// Makes the unallocated memory of a memfd come from `nodes`, whichever thread touches it; from
// several nodes in turns of 2 MiB. Returns false if the system refuses, which is harmless.
bool place_memory(int file, std::int64_t bytes, std::span<const int> nodes);

}  // namespace protean::cpu
