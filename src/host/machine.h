#pragma once

#include <cstdint>
#include <ctime>
#include <string>

#include "host/topology.h"

namespace protean {

// What this process may use, container limits included.
struct Machine {
  Topology topology;
  int cores = 1;  // CPUs that may be busy at once: a container's quota can be less than it sees
  std::int64_t free_memory_bytes = 0;
};
Machine this_machine();

// Cheap enough to be asked again and again.
std::int64_t free_memory_bytes();

// The model name of the processor, as the system calls it.
std::string cpu_name();

std::tm local_time();

}  // namespace protean
