#include "device/cpu/seat.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/units.h"

namespace protean::cpu {
namespace {

using Mask = std::vector<unsigned long>;

constexpr int kWordBits = CHAR_BIT * sizeof(unsigned long);
constexpr int kMostCpus = 1 << 16;  // eight times the limit of Linux
constexpr int kMostNodes = 1024;    // the limit of Linux
constexpr std::int64_t kTurnBytes = 2 * kMiB;

Mask mask_of(std::span<const int> numbers, int bits) {
  Mask mask(static_cast<std::size_t>(bits / kWordBits), 0);
  for (const int number : numbers) {
    if (number >= 0 && number < bits) {
      mask[static_cast<std::size_t>(number / kWordBits)] |= 1UL << (number % kWordBits);
    }
  }
  return mask;
}

bool set_cpus(std::span<const int> cpus) {
  const Mask mask = mask_of(cpus, kMostCpus);
  return sched_setaffinity(0, mask.size() * sizeof(mask[0]),
                           reinterpret_cast<const cpu_set_t*>(mask.data())) == 0;
}

// The system reads one bit less than the count it is given.
bool set_policy(int policy, const Mask& nodes) {
  const bool any = std::any_of(nodes.begin(), nodes.end(), [](unsigned long w) { return w != 0; });
  return syscall(SYS_set_mempolicy, policy, any ? nodes.data() : nullptr,
                 any ? kMostNodes + 1 : 0) == 0;
}

bool bind_piece(int file, std::int64_t offset, std::int64_t bytes, int node) {
  const auto length = static_cast<std::size_t>(bytes);
  void* const view = mmap(nullptr, length, PROT_NONE, MAP_SHARED, file, offset);
  if (view == MAP_FAILED) {
    return false;
  }
  // The policy belongs to the file and outlives this mapping.
  const Mask mask = mask_of(std::span(&node, 1), kMostNodes);
  const bool bound =
      syscall(SYS_mbind, view, length, MPOL_PREFERRED, mask.data(), kMostNodes + 1, 0) == 0;
  (void)munmap(view, length);
  return bound;
}

}  // namespace

std::vector<int> allowed_cpus() {
  Mask mask(static_cast<std::size_t>(kMostCpus / kWordBits), 0);
  std::vector<int> cpus;
  if (sched_getaffinity(0, mask.size() * sizeof(mask[0]),
                        reinterpret_cast<cpu_set_t*>(mask.data())) != 0) {
    return cpus;
  }
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if ((mask[static_cast<std::size_t>(cpu / kWordBits)] >> (cpu % kWordBits) & 1U) != 0) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

Seat::Seat(std::span<const int> cpus, std::span<const int> nodes) {
  if (!cpus.empty()) {
    take_cpus(cpus);
  }
  if (!nodes.empty()) {
    take_nodes(nodes);
  }
}

void Seat::take_cpus(std::span<const int> cpus) {
  std::vector<int> before = allowed_cpus();
  if (set_cpus(cpus)) {
    cpus_before_ = std::move(before);
  } else {
    taken_ =
        make_error(ErrorCode::kUnavailable, "the system refused to set the CPUs of a thread ({})",
                   std::strerror(errno));
  }
}

void Seat::take_nodes(std::span<const int> nodes) {
  int policy = -1;
  Mask before(kMostNodes / kWordBits, 0);
  if (syscall(SYS_get_mempolicy, &policy, before.data(), kMostNodes + 1, nullptr, 0) == 0 &&
      set_policy(nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE,
                 mask_of(nodes, kMostNodes))) {
    policy_before_ = policy;
    nodes_before_ = std::move(before);
  } else if (taken_.ok()) {
    taken_ = make_error(ErrorCode::kUnavailable,
                        "the system refused to set the NUMA nodes of a thread ({})",
                        std::strerror(errno));
  }
}

// Restoring fails if the allowed CPUs have shrunk meanwhile. The system then chooses CPUs itself.
Seat::~Seat() {
  if (!cpus_before_.empty()) {
    (void)set_cpus(cpus_before_);
  }
  if (policy_before_ >= 0) {
    (void)set_policy(policy_before_, nodes_before_);
  }
}

// MPOL_INTERLEAVE is not used: it counts small pages, so that all huge pages would get the same
// node.
bool place_memory(int file, std::int64_t bytes, std::span<const int> nodes) {
  if (nodes.empty()) {
    return true;
  }
  if (nodes.size() == 1) {
    return bind_piece(file, 0, bytes, nodes.front());
  }
  std::size_t turn = 0;
  for (std::int64_t offset = 0; offset < bytes; offset += kTurnBytes, ++turn) {
    if (!bind_piece(file, offset, std::min(kTurnBytes, bytes - offset),
                    nodes[turn % nodes.size()])) {
      return false;
    }
  }
  return true;
}

}  // namespace protean::cpu
