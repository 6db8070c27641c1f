#pragma once

#include <vector>

namespace protean::cpu {

// Where a device is on its host: the CPUs that compute, as the system numbers them, in the order in
// which threads take them, and the NUMA nodes that its memory comes from. Empty: wherever the
// system likes, which on a host of one node is right for memory.
struct Locality {
  std::vector<int> cpus;
  std::vector<int> nodes;
  bool pinned = false;  // each thread stays on one of the CPUs; else any may run on all of them
};

}  // namespace protean::cpu
