#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean {

// A CPU by the system's number, its core and its NUMA node.
struct CpuPlace {
  int cpu = 0;
  int core = 0;  // the lowest CPU on the same core
  int node = 0;
};

struct Topology {
  std::vector<CpuPlace> cpus;     // ascending, each once
  std::vector<int> memory_nodes;  // all NUMA nodes with memory; empty if not known
};

// Reads the topology of these CPUs from `sys`, usually /sys. A CPU that it does not describe is a
// core of its own on node 0.
Topology read_topology(const std::filesystem::path& sys, std::span<const int> cpus);

// Reads the bytes that are free on each of these NUMA nodes, files in the page cache included.
// Leaves out nodes that `sys` does not describe.
std::map<int, std::int64_t> read_free_memory(const std::filesystem::path& sys,
                                             std::span<const int> nodes);

// Parses a list such as "0-3,8". The result is ascending and has no duplicates.
Result<std::vector<int>> parse_cpu_list(std::string_view text);
std::string format_cpu_list(std::vector<int> cpus);

}  // namespace protean
