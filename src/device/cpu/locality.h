#pragma once

#include <vector>

namespace protean::cpu {

// The CPUs and the NUMA nodes of the host that a device uses. Numbers are the system's. Threads
// take CPUs in this order. If a list is empty, the system chooses.
struct Locality {
  std::vector<int> cpus;
  std::vector<int> nodes;
  bool pinned =
      false;  // each thread stays on one of `cpus`; else all threads may run on all of them
};

}  // namespace protean::cpu
