#pragma once

#include <cstdint>
#include <ctime>
#include <string>

#include "host/topology.h"

namespace protean {

// What this process may use, within the limits of its container.
struct Machine {
  Topology topology;
  int cores = 1;  // CPUs that may be busy at once; a quota can allow fewer than it shows
  std::int64_t free_memory_bytes = 0;
  // This process maps the pages of all devices. False for devices that are simulated.
  bool maps_pages = true;
};
Machine this_machine();

// Returns the memory that is free now, page cache included. Cheap.
std::int64_t free_memory_bytes();

// Returns the size of the last cache before memory; 32 MiB if the system does not tell.
std::int64_t last_level_cache_bytes();

// Returns the processor's model name, "unknown" if the system does not tell.
std::string cpu_name();

std::tm local_time();

}  // namespace protean
