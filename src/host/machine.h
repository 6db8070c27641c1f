#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <string>

#include "host/topology.h"

namespace protean {

// What this process may use, within the limits of its container.
struct Machine {
  Topology topology;
  int cores = 1;  // CPUs that may be busy at once; a quota can allow fewer than it shows
  std::int64_t free_memory_bytes = 0;
  std::map<int, std::int64_t> node_free_bytes;  // by NUMA node, as the system counts; may be empty
  // This process maps the pages of all devices. False for devices that are simulated.
  bool maps_pages = true;
};
Machine this_machine();

// Returns the node's part of the memory that the process may take; nothing if it is not known.
std::optional<std::int64_t> free_bytes_of_node(const Machine& machine, int node);

// Returns the memory that is free now, page cache included. Cheap.
std::int64_t free_memory_bytes();

// Returns the size of the last cache before memory; 32 MiB if the system does not tell.
std::int64_t last_level_cache_bytes();

// Returns the processor's model name, "unknown" if the system does not tell.
std::string cpu_name();

std::tm local_time();

}  // namespace protean
