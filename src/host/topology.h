#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean {

// A CPU as the system numbers them, and what it shares with others.
struct CpuPlace {
  int cpu = 0;
  int core = 0;  // the lowest CPU on the same core
  int node = 0;
};

struct Topology {
  std::vector<CpuPlace> cpus;     // ascending, each once
  std::vector<int> memory_nodes;  // NUMA nodes with memory, of the whole machine; empty: not known
};

// What `sys`, as /sys, says of these CPUs. Where it is silent, each is a core of its own on node 0.
Topology read_topology(const std::filesystem::path& sys, std::span<const int> cpus);

// "0-3,8": ascending, each once.
Result<std::vector<int>> parse_cpu_list(std::string_view text);
std::string format_cpu_list(std::vector<int> cpus);

}  // namespace protean
