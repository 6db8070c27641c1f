#include "host/cgroup.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>

namespace protean {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> read_number(const fs::path& path) {
  std::int64_t value = 0;
  if (std::ifstream file(path); file >> value) {
    return value;
  }
  return std::nullopt;  // the file is missing or holds "max"
}

std::int64_t page_cache_bytes(const fs::path& folder) {
  std::ifstream file(folder / "memory.stat");
  std::int64_t sum = 0;
  std::int64_t value = 0;
  for (std::string key; file >> key >> value;) {
    sum += key == "inactive_file" || key == "active_file" ? value : 0;
  }
  return sum;
}

void limit_memory(const fs::path& folder, CgroupLimits& limits) {
  const auto limit = read_number(folder / "memory.max");
  const auto used = read_number(folder / "memory.current");
  if (limit && used) {
    const std::int64_t free_bytes = *limit - *used + page_cache_bytes(folder);
    limits.free_bytes = std::min(limits.free_bytes, std::max<std::int64_t>(0, free_bytes));
  }
}

// Reads cpu.max, such as "200000 100000": microseconds of CPU time, and of the period.
void limit_cores(const fs::path& folder, CgroupLimits& limits) {
  std::ifstream file(folder / "cpu.max");
  double quota = 0;
  double period = 0;
  if (file >> quota >> period && period > 0) {
    limits.cores = std::min(limits.cores, std::max(1, static_cast<int>(std::ceil(quota / period))));
  }
}

// Returns the path of the process's cgroup below the root: "system.slice/protean.service".
fs::path cgroup_path(const fs::path& own) {
  std::ifstream file(own);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) {
      return line.substr(4);
    }
  }
  return {};
}

}  // namespace

CgroupLimits read_cgroup_limits(const fs::path& own, const fs::path& root) {
  CgroupLimits limits;
  fs::path path = cgroup_path(own);
  for (bool at_root = false; !at_root; path = path.parent_path()) {
    at_root = path.empty();  // which is all that a container sees, where it has limits
    limit_memory(root / path, limits);
    limit_cores(root / path, limits);
  }
  return limits;
}

}  // namespace protean
