#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace protean {

// What cgroups (version 2), which systemd and containers set, leave to this process.
struct CgroupLimits {
  int cores = std::numeric_limits<int>::max();
  // Page cache counts as free, because it is reclaimed on demand.
  std::int64_t free_bytes = std::numeric_limits<std::int64_t>::max();
};

// Reads the limits of the cgroup that `own`, usually /proc/self/cgroup, names, and of all those
// that contain it up to `root`, usually /sys/fs/cgroup. The least of each counts.
CgroupLimits read_cgroup_limits(const std::filesystem::path& own,
                                const std::filesystem::path& root);

}  // namespace protean
