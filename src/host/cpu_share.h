#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "device/cpu/locality.h"
#include "host/machine.h"

namespace protean {

// The CPUs and threads that a user asks for.
struct ComputeOptions {
  std::string cpus;  // like 0-7,16; empty = all that this process may use
  int threads = 0;   // 0 = one for each of them
};

// What one device gets of a host: as many threads, on these CPUs.
struct CpuShare {
  int threads = 1;
  cpu::Locality where;
};

// "2 threads on CPUs 0-1, pinned"
std::string to_string(const CpuShare& share);

// Shares of so many devices, no CPU in two of them: in runs of whole cores as long as there is one
// for each, the CPUs of one node before those of the next, within a device one of each core before
// their siblings. Threads are pinned where --cpus names a CPU for each. An error where a device
// would get none.
Result<std::vector<CpuShare>> divide_cpus(const Machine& machine, const ComputeOptions& options,
                                          int devices);

// All of it for one.
Result<CpuShare> choose_cpus(const Machine& machine, const ComputeOptions& options);

}  // namespace protean
