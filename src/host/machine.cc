#include "host/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/cpu/seat.h"
#include "host/cgroup.h"

namespace protean {
namespace {

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

CgroupLimits own_limits() {
  return read_cgroup_limits("/proc/self/cgroup", "/sys/fs/cgroup");
}

}  // namespace

Machine this_machine() {
  std::vector<int> cpus = cpu::allowed_cpus();
  if (cpus.empty()) {
    cpus = {0};
  }
  Machine machine{.topology = read_topology("/sys", cpus),
                  .cores = std::min(static_cast<int>(cpus.size()), own_limits().cores),
                  .free_memory_bytes = free_memory_bytes()};
  machine.node_free_bytes = read_free_memory("/sys", machine.topology.memory_nodes);
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
  return std::min(system_free_bytes(), own_limits().free_bytes);
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
