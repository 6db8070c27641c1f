#include "host/cpu_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace protean {
namespace {

// Numbers CPUs as most servers do: one thread of each core, node by node, then their siblings.
Machine machine_of(int nodes, int cores_of_node, int threads_of_core) {
  Machine machine;
  const int cores = nodes * cores_of_node;
  for (int cpu = 0; cpu < cores * threads_of_core; ++cpu) {
    const int core = cpu % cores;
    machine.topology.cpus.push_back({.cpu = cpu, .core = core, .node = core / cores_of_node});
  }
  for (int node = 0; node < nodes; ++node) {
    machine.topology.memory_nodes.push_back(node);
  }
  machine.cores = cores * threads_of_core;
  return machine;
}

// Returns the machine as a process sees it that taskset or a cpuset restricts to these CPUs.
Machine only(Machine machine, const std::vector<int>& cpus) {
  std::erase_if(machine.topology.cpus, [&](const CpuPlace& place) {
    return std::find(cpus.begin(), cpus.end(), place.cpu) == cpus.end();
  });
  machine.cores = static_cast<int>(machine.topology.cpus.size());
  return machine;
}

using Cpus = std::vector<int>;

std::vector<Cpus> cpus_of(const Machine& machine, int devices, const ComputeOptions& options = {}) {
  const auto shares = divide_cpus(machine, options, devices);
  std::vector<Cpus> cpus;
  if (shares.ok()) {
    for (const CpuShare& share : *shares) {
      cpus.push_back(share.where.cpus);
    }
  }
  return cpus;
}

std::string refusal(const Machine& machine, int devices, const ComputeOptions& options = {}) {
  const auto shares = divide_cpus(machine, options, devices);
  return shares.ok() ? "" : shares.error().message;
}

TEST(CpuShare, OfOneDeviceIsAllWithAThreadForEachCpu) {
  const auto share = choose_cpus(machine_of(1, 2, 1), {});
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->threads, 2);
  EXPECT_EQ(share->where.cpus, (Cpus{0, 1}));
  EXPECT_TRUE(share->where.nodes.empty()) << "one node leaves nothing to choose";
  EXPECT_EQ(to_string(*share), "2 threads on CPUs 0-1");
}

TEST(CpuShare, RefusesFarMoreThreadsThanCpus) {
  const Machine machine = machine_of(1, 2, 1);
  EXPECT_EQ(refusal(machine, 1, {.threads = 8}), "");
  EXPECT_EQ(refusal(machine, 1, {.threads = 9}),
            "threads 9: this process may use 2 CPUs: use at most 8 threads");
  EXPECT_NE(refusal(machine, 4, {.threads = 9}), "") << "also where devices share the CPUs";
  EXPECT_TRUE(check_threads(machine, 0).ok()) << "one for each CPU";
}

TEST(CpuShare, TakesCoresBeforeSiblingsAndNodeAfterNode) {
  EXPECT_EQ(cpus_of(machine_of(1, 4, 2), 1), (std::vector<Cpus>{Cpus{0, 1, 2, 3, 4, 5, 6, 7}}));
  const auto share = choose_cpus(machine_of(2, 2, 2), {});
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->where.cpus, (Cpus{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(share->where.nodes, (std::vector{0, 1}));
  EXPECT_EQ(to_string(*share), "8 threads on CPUs 0-7, memory of nodes 0-1");
  // Some machines number the siblings of a core one after the other.
  Machine paired;
  for (int cpu = 0; cpu < 6; ++cpu) {
    paired.topology.cpus.push_back({.cpu = cpu, .core = cpu / 2 * 2});
  }
  paired.cores = 6;
  EXPECT_EQ(cpus_of(paired, 1), (std::vector<Cpus>{Cpus{0, 2, 4, 1, 3, 5}}));
}

TEST(CpuShare, OfADeviceForEachNodeIsTheNode) {
  const auto shares = divide_cpus(machine_of(2, 4, 2), {}, 2);
  ASSERT_TRUE(shares.ok());
  EXPECT_EQ(shares->at(0).where.cpus, (Cpus{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(shares->at(1).where.cpus, (Cpus{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(shares->at(0).where.nodes, std::vector{0});
  EXPECT_EQ(shares->at(1).where.nodes, std::vector{1});
  EXPECT_EQ(shares->at(1).threads, 8);
}

// Checks that every CPU is in one share, and that no core is divided if there is one per device.
TEST(CpuShare, IsNotShared) {
  for (const int nodes : {1, 2, 4}) {
    for (const int threads_of_core : {1, 2, 4}) {
      const Machine machine = machine_of(nodes, 6, threads_of_core);
      const int cpus = nodes * 6 * threads_of_core;
      for (int devices = 1; devices <= cpus; ++devices) {
        std::multiset<int> used;
        std::set<int> cores;
        std::size_t cores_of_devices = 0;
        std::size_t fewest = used.max_size();
        const auto shares = divide_cpus(machine, {}, devices);
        ASSERT_TRUE(shares.ok());
        for (const CpuShare& one : *shares) {
          const Cpus& share = one.where.cpus;
          EXPECT_EQ(std::ssize(share), one.threads);
          used.insert(share.begin(), share.end());
          std::set<int> own;
          for (const int cpu : share) {
            own.insert(cpu % (nodes * 6));
          }
          cores.insert(own.begin(), own.end());
          cores_of_devices += own.size();
          fewest = std::min(fewest, share.size());
        }
        EXPECT_EQ(used.size(), static_cast<std::size_t>(cpus));
        EXPECT_EQ(std::set(used.begin(), used.end()).size(), used.size());
        EXPECT_GE(fewest, 1U);
        if (devices <= nodes * 6) {
          EXPECT_EQ(cores_of_devices, cores.size()) << devices << " devices";
        }
      }
    }
  }
}

TEST(CpuShare, IsOfWhatTheProcessMayUse) {
  const Machine machine = only(machine_of(2, 8, 2), {3, 9, 10, 11, 19, 26});
  EXPECT_EQ(cpus_of(machine, 1), (std::vector<Cpus>{Cpus{3, 9, 10, 11, 19, 26}}));
  EXPECT_EQ(cpus_of(machine, 2), (std::vector<Cpus>{Cpus{3, 9, 19}, Cpus{10, 11, 26}}));
  const auto share = choose_cpus(only(machine_of(2, 8, 1), {9, 10}), {});
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->where.nodes, std::vector{1});
}

TEST(CpuShare, OfNodesWithoutMemoryComesFromWhereverThereIsSome) {
  Machine machine = machine_of(3, 2, 1);
  machine.topology.memory_nodes = {0, 2};
  const auto shares = divide_cpus(machine, {}, 3);
  ASSERT_TRUE(shares.ok());
  EXPECT_EQ(shares->at(0).where.nodes, std::vector{0});
  EXPECT_TRUE(shares->at(1).where.nodes.empty());
}

TEST(CpuShare, QuotaLimitsThreadsNotCpus) {
  Machine machine = machine_of(1, 8, 1);
  machine.cores = 3;  // a quota of 2.5 CPUs
  const auto share = choose_cpus(machine, {});
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->threads, 3);
  EXPECT_EQ(share->where.cpus.size(), 8U);
  EXPECT_EQ(to_string(*share), "3 threads on CPUs 0-7");
  const auto two = divide_cpus(machine, {}, 2);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->at(0).threads + two->at(1).threads, 2);
}

TEST(CpuShare, ThreadsThatWereAskedForAreGiven) {
  const auto fewer = choose_cpus(machine_of(1, 4, 1), {.threads = 1});
  const auto more = choose_cpus(machine_of(1, 4, 1), {.cpus = "2", .threads = 6});
  ASSERT_TRUE(fewer.ok() && more.ok());
  EXPECT_EQ(to_string(*fewer), "1 thread on CPUs 0-3");
  EXPECT_EQ(to_string(*more), "6 threads on CPU 2");
}

TEST(CpuShare, IsPinnedWhereEachNamedCpuHasAThread) {
  Machine machine = machine_of(1, 4, 1);
  const auto pinned = [&](const ComputeOptions& options) {
    const auto share = choose_cpus(machine, options);
    return share.ok() && share->where.pinned;
  };
  EXPECT_TRUE(pinned({.cpus = "0-3"}));
  EXPECT_TRUE(pinned({.cpus = "1,3", .threads = 2}));
  EXPECT_FALSE(pinned({}));
  EXPECT_FALSE(pinned({.threads = 4}));
  EXPECT_FALSE(pinned({.cpus = "0-3", .threads = 3}));
  EXPECT_FALSE(pinned({.cpus = "0-3", .threads = 5}));
  EXPECT_EQ(to_string(*choose_cpus(machine, {.cpus = "0,3"})), "2 threads on CPUs 0,3, pinned");
  machine.cores = 2;
  EXPECT_FALSE(pinned({.cpus = "0-3"})) << "a quota for two";
  const auto two = divide_cpus(machine_of(1, 4, 1), {.cpus = "0-3"}, 2);
  ASSERT_TRUE(two.ok());
  EXPECT_TRUE(two->at(0).where.pinned && two->at(1).where.pinned);
}

TEST(CpuShare, CpusThatWereNamedAreUsed) {
  const Machine machine = machine_of(2, 4, 2);
  EXPECT_EQ(cpus_of(machine, 1, {.cpus = "4-7"}), (std::vector<Cpus>{Cpus{4, 5, 6, 7}}));
  EXPECT_EQ(cpus_of(machine, 2, {.cpus = "12,0-1,4-5"}),
            (std::vector<Cpus>{Cpus{0, 1}, Cpus{4, 5, 12}}));
  EXPECT_EQ(refusal(machine, 1, {.cpus = "0-7,x"}),
            "--cpus: '0-7,x' is not a list of CPUs like 0-7,16: numbers and runs from 0 to 65535");
  EXPECT_EQ(refusal(only(machine, {0, 1, 2, 5}), 1, {.cpus = "0-3"}),
            "--cpus 0-3: this process may use 0-2,5 only: name some of these");
}

TEST(CpuShare, MoreDevicesThanCoresSplitThemAndMoreThanCpusAreRefused) {
  const Machine machine = machine_of(1, 2, 2);
  EXPECT_EQ(cpus_of(machine, 4), (std::vector<Cpus>{Cpus{0}, Cpus{2}, Cpus{1}, Cpus{3}}));
  const auto five = divide_cpus(machine, {}, 5);
  ASSERT_TRUE(five.ok());
  for (const CpuShare& share : *five) {
    EXPECT_EQ(to_string(share), "1 thread on CPUs 0-3") << "more devices than CPUs share them";
  }
}

}  // namespace
}  // namespace protean
