#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "device/cpu/locality.h"
#include "host/machine.h"

namespace protean {

// The CPUs and threads that a user asks for.
struct ComputeOptions {
  std::string cpus;  // such as 0-7,16; empty: all that this process may use
  int threads = 0;   // 0: one for each of these CPUs
};

// The part of the host that one device computes on.
struct CpuShare {
  int threads = 1;
  cpu::Locality where;
};

// Returns a text such as "2 threads on CPUs 0-1, pinned".
std::string to_string(const CpuShare& share);

// Fails if far more threads are asked for than this process has CPUs.
Status check_threads(const Machine& machine, int threads);

// Divides the CPUs among `devices`; no CPU is in two shares unless there are fewer CPUs than
// devices: then each device has all of them and one thread. Shares are runs of whole cores if there
// is a core for each device, NUMA node after node. A share lists one CPU of each core first, then
// their siblings. Threads are pinned if --cpus names a CPU for each of them.
// Fails as check_threads() does.
Result<std::vector<CpuShare>> divide_cpus(const Machine& machine, const ComputeOptions& options,
                                          int devices);

// Returns the share of a single device.
Result<CpuShare> choose_cpus(const Machine& machine, const ComputeOptions& options);

}  // namespace protean
