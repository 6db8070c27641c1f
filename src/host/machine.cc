#include "host/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/cpu/seat.h"

namespace protean {
namespace {

std::optional<std::int64_t> read_number(const std::string& path) {
  std::int64_t value = 0;
  if (std::ifstream file(path); file >> value) {
    return value;
  }
  return std::nullopt;  // the file is missing or holds "max"
}

std::int64_t system_free_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, unit; file >> key;) {
    std::int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) {
      return kib * kKiB;
    }
    std::getline(file, unit);
  }
  return 0;
}

// Returns the folder of this process's cgroup, which systemd and containers limit.
std::string cgroup_folder() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) {
      return "/sys/fs/cgroup" + line.substr(3);
    }
  }
  return "/sys/fs/cgroup";
}

// Returns the page cache, which counts as used but is reclaimed on demand.
std::int64_t reclaimable_bytes(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::int64_t sum = 0;
  std::int64_t value = 0;
  for (std::string key; file >> key >> value;) {
    sum += key == "inactive_file" || key == "active_file" ? value : 0;
  }
  return sum;
}

std::int64_t container_free_bytes(const std::string& folder) {
  const auto limit = read_number(folder + "/memory.max");
  const auto used = read_number(folder + "/memory.current");
  return limit && used ? std::max<std::int64_t>(0, *limit - *used + reclaimable_bytes(folder))
                       : std::numeric_limits<std::int64_t>::max();
}

// Reads cpu.max, such as "200000 100000": microseconds of CPU time, and of the period.
int container_cores(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0;
  double period = 0;
  return file >> quota >> period && period > 0
             ? std::max(1, static_cast<int>(std::ceil(quota / period)))
             : std::numeric_limits<int>::max();
}

// Returns the folders with limits: the process's cgroup, and the root that a container sees.
std::vector<std::string> cgroup_folders() {
  return {cgroup_folder(), "/sys/fs/cgroup"};
}

}  // namespace

Machine this_machine() {
  std::vector<int> cpus = cpu::allowed_cpus();
  if (cpus.empty()) {
    cpus = {0};
  }
  Machine machine{.topology = read_topology("/sys", cpus),
                  .cores = static_cast<int>(cpus.size()),
                  .free_memory_bytes = free_memory_bytes()};
  machine.node_free_bytes = read_free_memory("/sys", machine.topology.memory_nodes);
  for (const std::string& folder : cgroup_folders()) {
    machine.cores = std::min(machine.cores, container_cores(folder));
  }
  return machine;
}

std::optional<std::int64_t> free_bytes_of_node(const Machine& machine, int node) {
  const auto found = machine.node_free_bytes.find(node);
  if (found == machine.node_free_bytes.end()) {
    return std::nullopt;
  }
  double all = 0;
  for (const auto& [other, bytes] : machine.node_free_bytes) {
    all += static_cast<double>(bytes);
  }
  const double part = all > 0 ? static_cast<double>(found->second) / all : 0;
  return std::min<std::int64_t>(
      found->second, std::llround(part * static_cast<double>(machine.free_memory_bytes)));
}

std::int64_t free_memory_bytes() {
  std::int64_t bytes = system_free_bytes();
  for (const std::string& folder : cgroup_folders()) {
    bytes = std::min(bytes, container_free_bytes(folder));
  }
  return bytes;
}

std::int64_t last_level_cache_bytes() {
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    if (const long bytes = ::sysconf(level); bytes > 0) {
      return bytes;
    }
  }
  return 32 * kMiB;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return local;
}

}  // namespace protean
