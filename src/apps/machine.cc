#include "apps/machine.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "base/units.h"

namespace protean {
namespace {

std::optional<std::int64_t> read_number(const std::string& path) {
  std::int64_t value = 0;
  if (std::ifstream file(path); file >> value) {
    return value;
  }
  return std::nullopt;  // missing, or "max"
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

std::int64_t container_free_bytes() {
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto used = read_number("/sys/fs/cgroup/memory.current");
  return limit && used ? std::max<std::int64_t>(0, *limit - *used)
                       : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

Machine this_machine() {
  Machine machine;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    machine.cores = std::max(1, CPU_COUNT(&allowed));
  }
  machine.free_memory_bytes = std::min(system_free_bytes(), container_free_bytes());
  return machine;
}

}  // namespace protean
